package directory

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/sim"
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

// TestRefusedAccept: an accept in an epoch that the worker has left sends nothing. So what the
// prepare before it has in flight is not taken for accepts, of which buffers leak.
func TestRefusedAccept(t *testing.T) {
	l, err := NewLayout(Shape{Nodes: 3, Replicas: 3, Buckets: 1})
	must(t, err)
	a := newArena(l, 100)
	s := sim.New(sim.Options{Nodes: 3, Memory: a.memory(), Handler: node.Serve,
		Faults: sim.Faults{{Kind: sim.LateFault, Client: "client", At: time.Millisecond, For: time.Second}}})
	defer s.Close()
	s.Go("client", func(ep rdma.Endpoint) {
		m, err := kit.Join(ep)
		must(t, err)
		dead := Open(ep, l, a, Options{})
		dead.promises(t) // the bucket is not settled, so decide comes behind a prepare
		dead.Close()
		late := map[rdma.Step]func(){stepPrepare: func() { ep.Sleep(time.Millisecond) }}
		c := Open(&hook{ep, late}, l, a, Options{Member: m})
		flying, calls := quorum.Mask(0), 0
		must(t, c.Change(someHash, 1<<16, func(e []Entry) ([]Entry, error) {
			if calls++; calls == 1 {
				flying = c.quorum.Flying()
				v := s.View()
				busy := rdma.State{Epoch: v.Epoch + 1, Busy: true}
				_, err := s.Advance(rdma.State{Epoch: v.Epoch}, busy)
				must(t, errors.Join(err, s.Fence(busy.Epoch)))
				_, err = s.Advance(busy, rdma.State{Epoch: busy.Epoch})
				must(t, errors.Join(err, m.Join()))
			}
			return append(e, Entry{someHash, 1}), nil
		}))
		if n := c.Stats().Leaked; flying == 0 || n != 0 {
			t.Errorf("%d buffers leaked: an accept sent nothing, behind a prepare in flight at %b", n, flying)
		}
		c.Close()
	})
	must(t, s.Run())
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

// outOfReach is an endpoint that no node is in reach of when a step is posted first.
type outOfReach struct {
	rdma.Endpoint
	step rdma.Step
}

func (e *outOfReach) Post(b *rdma.Batch) error {
	if b.Step() == e.step {
		e.step = ""
		var faults []fault.Fault
		for i := range b.Len() {
			faults = append(faults, fault.Fault{At: uint64(i + 1), Err: rdma.NoEffect(rdma.ErrNodeDown)})
		}
		e.Endpoint = fault.New(e.Endpoint, faults...)
	}
	return e.Endpoint.Post(b)
}

// TestUnsentAccept: an accept that was sent to no node, since all are out of reach, had no effect.
// The change is certain, and its buffers are the client's.
func TestUnsentAccept(t *testing.T) {
	f, a, around := three(t, 1, 100)
	must(t, put(around(-1), someHash, 1))
	ep, err := f.Open(t.Name())
	must(t, err)
	defer ep.Close()
	c := Open(&outOfReach{ep, "accept"}, a.Layout, a, Options{})
	defer c.Close()
	c.begin(c.BucketOf(someHash))
	ch := change{id: 1<<16 | 2, decide: func(bucket []Entry) ([]Entry, error) { return bucket[:0], nil }}
	for settled := false; !settled; {
		settled, err = c.look()
		must(t, err)
	}
	_, err = c.attempt(&ch, true)
	wantError(t, err, rdma.ErrNodeDown)
	c.giveSpares()
	if n := c.Stats().Leaked; ch.sent || n != 0 {
		t.Errorf("%d buffers leaked: an accept reached no node, and counts as sent: %v", n, ch.sent)
	}
}

// TestFenceUnderAWalk: an epoch begins while a walk fetches a value that does not lie in place. It
// joins that, and goes on.
func TestFenceUnderAWalk(t *testing.T) {
	f, a, around := three(t, 1, 100)
	x := around(-1)
	must(t, put(x, someHash, 1))
	x.begin(0)
	b := x.ep.Batch()
	b.WriteCopy(x.at[0].Add(wordBytes), make([]byte, BufferBytes))
	must(t, rdma.Do(x.ep, b, time.Second))
	b.Release()
	ep, err := f.Open(t.Name())
	must(t, err)
	defer ep.Close()
	m, err := kit.Join(ep)
	must(t, err)
	c := Open(&hook{ep, map[rdma.Step]func(){stepFetch: func() {
		v := f.View()
		if ok, err := f.Advance(rdma.State{Epoch: v.Epoch}, rdma.State{Epoch: v.Epoch + 1}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		must(t, f.Fence(v.Epoch+1))
	}}}, a.Layout, a, Options{Member: m})
	defer c.Close()
	entries, was := 0, m.Epoch
	must(t, c.Walk(func(f *Found) error { entries += len(f.Entries); return nil }))
	if entries != 1 || m.Epoch != was+1 {
		t.Errorf("%d entries are known in epoch %d", entries, m.Epoch)
	}
}
