package swarm

import (
	"testing"

	"github.com/farkv/farkv/node/rdma"
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
