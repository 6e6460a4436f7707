package swarm

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// betweenPosts begins an epoch before its worker's next batch with a verb, when it is told to.
type betweenPosts struct {
	rdma.Endpoint
	f    rdma.Fabric
	verb rdma.Verb
	next bool
}

func (h *betweenPosts) Post(b *rdma.Batch) error {
	for i := range b.Len() {
		if h.next && b.Op(i).Verb == h.verb {
			h.next = false
			if err := beginEpoch(h.f); err != nil {
				return err
			}
			break
		}
	}
	return h.Endpoint.Post(b)
}

func beginEpoch(f rdma.Fabric) error {
	v := f.View()
	to := rdma.State{Epoch: v.Epoch + 1, Busy: true}
	if _, err := f.Advance(rdma.State{Epoch: v.Epoch}, to); err != nil {
		return err
	}
	if err := f.Fence(to.Epoch); err != nil {
		return err
	}
	_, err := f.Advance(to, rdma.State{Epoch: to.Epoch})
	return err
}

// TestUpdateOverEpochs: an UPDATE of a cached pair of an earlier epoch, or of a client that has
// slept for some, is cut off by yet another epoch, and succeeds.
func TestUpdateOverEpochs(t *testing.T) {
	for i := range 8 {
		epochs, raw := i/2, i%2 == 1
		p, verb := small(3, 3, false), rdma.CompareSwap
		if raw {
			p, verb = smallRaw(3), rdma.Write
		}
		f := storePool(t, 3, p)
		ep, err := f.Open(t.Name())
		must(t, err)
		h := &betweenPosts{Endpoint: ep, f: f, verb: verb}
		s, err := OpenStore(h, StoreOptions{Raw: raw})
		must(t, err)
		must(t, s.Insert([]byte("old"), []byte("1")))
		must(t, s.Insert([]byte("other"), []byte("1")))
		for range epochs {
			must(t, beginEpoch(f))
		}
		s.proven -= s.c.opt.Timeout // it has slept
		if epochs == 1 {            // it knows of that one, but of the pair from before
			_, err := s.Get([]byte("other"))
			must(t, err)
			s.proven = s.ep.Now()
		}
		h.next = true
		must(t, s.Update([]byte("old"), []byte("2")))
		if v, err := s.Get([]byte("old")); err != nil || string(v) != "2" {
			t.Errorf("raw %v, behind %d epochs: got %q, %v", raw, epochs, v, err)
		}
		must(t, s.Close())
		must(t, ep.Close())
	}
}

// TestRefusedBeforePosted: an operation on an outdated object sends nothing. So its outcome is
// certain, and what the operation before has in flight is not taken for its own.
func TestRefusedBeforePosted(t *testing.T) {
	l, err := NewLayout(Shape{Replicas: 3, Words: 2, Locks: 2, Writers: 2, MaxValue: 8})
	must(t, err)
	for _, op := range []string{"DELETE", "UPDATE"} {
		a := newArena(l, 3, 2, 100).recycle()
		s := sim.New(sim.Options{Nodes: 3, Memory: a.memory(), Handler: node.Serve, Faults: sim.Faults{
			{Kind: sim.LateFault, Client: "client", Verb: 2, For: time.Second}}})
		s.Go("client", func(ep rdma.Endpoint) {
			m, err := kit.Join(ep)
			must(t, err)
			outdate := func() error { return errors.Join(beginEpoch(s), beginEpoch(s), m.Join()) }
			use := func(uint64) error { return outdate() } // a ceiling that is raised joins, too
			x, err := a.open(ep, Options{Member: m, Slow: 10 * time.Microsecond, Use: use})
			must(t, err)
			_, err = x.Read(&x.keys[0])
			wantError(t, err, ErrEmpty)
			if x.quorum.Flying() == 0 {
				t.Error("no READ is in flight: this test shows nothing")
			}
			if k := &x.keys[1]; op == "DELETE" {
				must(t, outdate())
				err = x.Client.Delete(k)
			} else {
				k.warm = true
				if err = x.Write(k, []byte("value")); errors.Is(err, client.ErrUncertain) {
					t.Errorf("%s: got %v, but nothing was sent", op, err)
				}
			}
			wantError(t, err, ErrOutdated)
			if n := x.unresolved.Len(); n != 0 {
				t.Errorf("%s: %d steps are unresolved, want 0: it has sent nothing", op, n)
			}
			must(t, x.Close())
		})
		must(t, s.Run())
		s.Close()
	}
}
