package fusee

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
)

// A CAS that reaches a backup late finds there the word of a later round: for example the pending
// word of an INSERT that follows the DELETE that won. That word decides nothing in the writer's
// own round, which is over. Each verb of an UPDATE is delayed in turn, for as long as a DELETE
// and an INSERT may take.
func TestLateProposal(t *testing.T) {
	verbs, err := lateProposal(t, nil)
	must(t, err)
	for verb := verbs + 1; verb <= verbs+8; verb++ {
		for late := 2 * time.Microsecond; late < 40*time.Microsecond; late += time.Microsecond {
			fault := sim.Fault{Kind: sim.FlyFault, Client: "#0", Verb: verb, For: late}
			if _, err := lateProposal(t, sim.Faults{fault}); err != nil {
				t.Fatalf("%v: %v", fault, err)
			}
		}
	}
}

// lateProposal runs an UPDATE against a DELETE that an INSERT follows. It returns how many verbs
// the UPDATE's client posted before.
func lateProposal(t *testing.T, faults sim.Faults) (verbs uint64, err error) {
	p := small(3, 3, 1)
	l, err := layout.New(p, 3, 1<<40)
	must(t, err)
	f := sim.New(sim.Options{Nodes: 3, Memory: l.Bytes, Clients: p.Clients, Handler: node.Serve, Faults: faults})
	defer f.Close()
	must(t, session.Make(f, p))
	const meet = 10 * time.Millisecond
	recorders := make([]*check.Recorder, 3)
	for i := range recorders {
		f.Go("worker", func(ep rdma.Endpoint) {
			posts := &counting{Endpoint: ep}
			c, err := Open(posts, thrifty(Options{}))
			must(t, err)
			r := check.NewRecorder(i, c, ep.Now)
			recorders[i] = r
			if i == 0 {
				r.Insert(key(1), []byte("first"))
				verbs = posts.verbs
			}
			ep.Sleep(meet - ep.Now())
			switch i {
			case 0:
				r.Update(key(1), []byte("updated"))
			case 1:
				r.Delete(key(1))
			case 2:
				for r.Insert(key(1), []byte("again")) != nil {
				}
			}
			must(t, c.Close())
		})
	}
	must(t, f.Run())
	return verbs, judge(f, recorders, nil)
}

// counting counts the verbs that a worker posts.
type counting struct {
	rdma.Endpoint
	verbs uint64
}

func (c *counting) Post(b *rdma.Batch) error {
	c.verbs += uint64(b.Len())
	return c.Endpoint.Post(b)
}
