package fusee

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// TestContention lets a few workers contend for one to four keys. Memory is so scarce that
// objects are used again at once; tags are so short that they wrap, or they are long and there is
// no quarantine. storetest's histories are broader. $FARKV_SEEDS and $FARKV_SEED choose the
// seeds.
func TestContention(t *testing.T) {
	for _, r := range []struct{ nodes, index, data int }{{1, 1, 1}, {2, 2, 2}, {3, 3, 2}, {4, 4, 2}, {5, 5, 3}} {
		t.Run(fmt.Sprintf("%d index replicas", r.index), func(t *testing.T) {
			var rules [4]uint64
			count := seeds.Each(t, 150, func(seed uint64) error {
				return contend(seed, r.nodes, r.index, r.data, &rules)
			})
			t.Logf("lost %d writes, won %d by rule 1, %d by rule 2, %d by rule 3",
				rules[0], rules[1], rules[2], rules[3])
			if count >= 50 && (rules[0] == 0 || r.index > 2 && rules[3] == 0 && r.index != 4 ||
				r.index > 3 && rules[2] == 0) {
				t.Error("the workers do not meet: this test shows nothing")
			}
		})
	}
}

// mixes are the shares of Get, Insert, Update and Delete, of 10.
var mixes = [][4]int{{3, 0, 7, 0}, {3, 4, 0, 3}, {2, 3, 3, 2}}

// contend is one run. It returns what is wrong with it.
func contend(seed uint64, nodes, index, data int, rules *[4]uint64) error {
	rng := rand.New(rand.NewPCG(seed, 7))
	p := layout.Params{IndexReplicas: index, DataReplicas: data, Subtables: 1, Groups: 2, Regions: 2*nodes + 3,
		RegionBytes: 32 << 10, BlockBytes: 4 << 10, Clients: 16, Timeout: 20 * time.Millisecond,
		TagBits: 1 + rng.IntN(3)}
	hasty := rng.IntN(2) == 0 // objects are used again while clients may remember them: the tag tells
	if hasty {
		p.TagBits = race.MaxTagBits
	}
	l, err := layout.New(p, nodes, 1<<40)
	if err != nil {
		return err
	}
	o := sim.Hostile(seed)
	o.Nodes, o.Memory, o.Clients, o.Handler = nodes, l.Bytes, p.Clients, node.Serve
	o.FlyProb = []float64{0, 0.02, 0.2}[rng.IntN(3)]
	o.MaxLatency = []time.Duration{2, 10, 50}[rng.IntN(3)] * time.Microsecond // far from the least: nodes disagree
	s := sim.New(o)
	defer s.Close()
	if err := session.Make(s, p); err != nil {
		return err
	}
	workers, ops, keys, mix := 2+rng.IntN(4), 5+rng.IntN(30), 1+rng.IntN(4), mixes[rng.IntN(len(mixes))]
	size := []int{0, 900}[rng.IntN(2)] // 62 objects a block, or 3
	recorders, errs := make([]*check.Recorder, workers), make([]error, workers)
	for w := range workers {
		s.Go(fmt.Sprintf("worker %d", w), func(ep rdma.Endpoint) {
			c, err := Open(ep, thrifty(Options{CacheThreshold: new(0.9)}))
			if err != nil {
				errs[w] = err
				return
			}
			recorders[w] = check.NewRecorder(w, c, ep.Now)
			if hasty {
				c.mem.Reclaim.Rest = 0
			}
			for i := range ops {
				meet(recorders[w], ep.Rand(), mix, keys, check.MakeValue(nil, w, i+1, size))
			}
			errs[w] = c.Close()
			for i, n := range c.Stats().Rules {
				rules[i] += n
			}
		})
	}
	if err := s.Run(); err != nil {
		return err
	}
	return judge(s, recorders, errors.Join(errs...))
}

// meet runs one operation on one of the keys.
func meet(r *check.Recorder, rng *rand.Rand, mix [4]int, keys int, value []byte) {
	key := fmt.Appendf(nil, "key-%d", rng.IntN(keys))
	switch n := rng.IntN(10); {
	case n < mix[0]:
		r.Get(key)
	case n < mix[0]+mix[1]:
		r.Insert(key, value)
	case n < mix[0]+mix[1]+mix[2]:
		r.Update(key, value)
	default:
		r.Delete(key)
	}
}

func judge(f rdma.Fabric, recorders []*check.Recorder, err error) error {
	var h check.History
	for _, r := range recorders {
		if r == nil {
			return err
		}
		h = append(h, r.History()...)
	}
	if bad := h.With(check.Uncertain, check.Failed, check.Refused); len(bad) > 0 {
		return fmt.Errorf("%d of %d operations failed, the first is: %v", len(bad), len(h), &bad[0])
	}
	if wrong := check.Linearizable(h, check.Options{}); wrong != nil || err != nil {
		return errors.Join(wrong, err)
	}
	r, err := Check(f)
	if err == nil && len(r.Damage)+len(r.Waiting) > 0 {
		err = fmt.Errorf("check found damage: %q %q", r.Damage, r.Waiting)
	}
	return err
}

var _ client.Store = (*Client)(nil)
