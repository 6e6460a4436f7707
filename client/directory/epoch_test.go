package directory

import (
	"errors"
	"slices"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// TestEpochUnderAChange: what a change has in hand when the worker joins another epoch is neither
// used nor given back: it may be another's by then.
func TestEpochUnderAChange(t *testing.T) {
	f, a, around := three(t, 1, 100)
	must(t, put(around(-1), someHash, 1))
	ep, err := f.Open(t.Name())
	must(t, err)
	m, err := kit.Join(ep)
	must(t, err)
	h := &hook{ep, map[rdma.Step]func(){}}
	c := Open(h, a.Layout, a, Options{Member: m})
	defer ep.Close()
	defer c.Close()
	var had [quorum.MaxReplicas]uint16
	h.before[stepPrepare] = func() {
		had = c.spares
		v := f.View()
		if ok, err := f.Advance(rdma.State{Epoch: v.Epoch},
			rdma.State{Epoch: v.Epoch + 1, Busy: true}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		must(t, f.Fence(v.Epoch+1))
		must(t, m.Join())
	}
	must(t, put(c, someHash, 2))
	if had == [quorum.MaxReplicas]uint16{} {
		t.Fatal("the change had nothing in hand")
	}
	last := around(-1)
	if got := last.locations(t, someHash); !slices.Equal(got, []uint64{1, 2}) {
		t.Errorf("%v is there", got)
	}
	must(t, last.Walk(func(f *Found) error {
		for r, p := range had[:c.Replicas] {
			n := nodeOf(last, r)
			if p != 0 && (!a.owned[n][p] || slices.Contains(f.Held, Held{n, 0, p})) {
				t.Errorf("buffer %d of node %d, of an epoch that is over, is used twice", p, n)
			}
		}
		return nil
	}))
}

// mute is an endpoint that posts nothing while it is shut.
type mute struct {
	rdma.Endpoint
	shut rdma.Step
}

func (m *mute) Post(b *rdma.Batch) error {
	if b.Step() == m.shut {
		return rdma.ErrClosed
	}
	return m.Endpoint.Post(b)
}

// TestNothingSent: of an accept that was not sent all is known: the change has had no effect, and
// its buffers are the client's.
func TestNothingSent(t *testing.T) {
	f, a, around := three(t, 1, 100)
	must(t, put(around(-1), someHash, 1))
	ep, err := f.Open(t.Name())
	must(t, err)
	defer ep.Close()
	owned := 0
	for n := range a.owned {
		owned += len(a.owned[n])
	}
	c := Open(&mute{Endpoint: ep, shut: "accept"}, a.Layout, a, Options{})
	defer c.Close()
	err = put(c, someHash, 2)
	wantError(t, err, rdma.ErrClosed)
	if errors.Is(err, client.ErrUncertain) {
		t.Errorf("a change that was not sent: want an error that is certain, got %v", err)
	}
	for n := range a.owned {
		owned -= len(a.owned[n])
	}
	if owned != 0 || c.Stats().Leaked != 0 {
		t.Errorf("%d buffers of a change that was not sent: one is lost", -owned)
	}
}
