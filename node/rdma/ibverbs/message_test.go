package ibverbs

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// listener is a worker with a mailbox that is closed with the test.
func listener(t testing.TB, f *Fabric, o rdma.BoxOptions) (*Endpoint, *mailbox) {
	t.Helper()
	ep := worker(t, f)
	m, err := rdma.Listen(ep, o)
	if err != nil {
		t.Fatal(err)
	}
	return ep, m.(*mailbox)
}

// correspondents are a worker with a mailbox at a node, and one that has sent to it.
func correspondents(t testing.TB, f *Fabric, node int, o rdma.BoxOptions) (from, to *Endpoint, box *mailbox) {
	t.Helper()
	o.Node, o.Number = node, 7
	to, box = listener(t, f, o)
	from, _ = listener(t, f, rdma.BoxOptions{Node: rdma.All})
	if err := errors.Join(sendWord(from, box.Addr(node), 0), next(box, 0)); err != nil {
		t.Fatal(err)
	}
	return from, to, box
}

// sending posts SENDs of words.
func post(t testing.TB, ep *Endpoint, to rdma.BoxAddr, words ...uint64) *rdma.Batch {
	t.Helper()
	b := ep.Batch()
	for _, w := range words {
		p := b.Alloc(8)
		binary.NativeEndian.PutUint64(p, w)
		b.Send(to, p)
	}
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func sendWord(ep *Endpoint, to rdma.BoxAddr, w uint64) error {
	b := ep.Batch()
	defer b.Release()
	p := b.Alloc(8)
	binary.NativeEndian.PutUint64(p, w)
	b.Send(to, p)
	return rdma.Do(ep, b, testPatience)
}

var errOther = errors.New("another message")

// next takes the next message, which is to be a word.
func next(box *mailbox, want uint64) error {
	for {
		if m := box.Next(); m != nil {
			defer box.Release(m)
			if len(m.Data) != 8 || binary.NativeEndian.Uint64(m.Data) != want {
				return errOther
			}
			return nil
		}
		if err := box.Await(testPatience); err != nil {
			return err
		}
	}
}

// TestOverfullMailbox posts many messages at a time to a mailbox of few buffers. Those that are not
// refused arrive, once and in order, also when a whole way of them waits behind one that is
// refused.
func TestOverfullMailbox(t *testing.T) {
	p := newPool(t, shape{nodes: 1})
	from, _, box := correspondents(t, p.Fabric, 0, rdma.BoxOptions{Slots: 3})
	var words []uint64
	for i := range uint64(100) {
		words = append(words, i)
	}
	tooLong := time.Millisecond // for a device that finds no buffer
	if p.net != nil {
		p.net.hasty.Store(true)
	}
	if *host != "" {
		tooLong = 100 * time.Millisecond // soft-RoCE tries again by the jiffy
	}
	b := post(t, from, box.Addr(0), words...)
	var came []uint64
	for until := from.Now() + testPatience; !b.Finished() && from.Now() < until; {
		if err := from.Wait(b, rdma.All, tooLong); err != nil && !errors.Is(err, rdma.ErrTimeout) {
			t.Fatal(err)
		}
		for m := box.Next(); m != nil; m = box.Next() {
			came = append(came, binary.NativeEndian.Uint64(m.Data))
			box.Release(m)
		}
	}
	for m := box.Next(); m != nil; m = box.Next() {
		came = append(came, binary.NativeEndian.Uint64(m.Data))
		box.Release(m)
	}
	refused := 0
	for i := range b.Len() {
		switch err := b.Op(i).Err; {
		case errors.Is(err, rdma.ErrBoxFull):
			refused++
		case err != nil:
			t.Fatalf("message %d: %v", i, err)
		case len(came) == 0 || came[0] != uint64(i):
			t.Fatalf("message %d has not arrived, or not in its turn: %v", i, came)
		default:
			came = came[1:]
		}
	}
	if refused == 0 || len(came) > 0 {
		t.Errorf("%d were refused, and %v arrived beside the others", refused, came)
	}
}

// TestMessageBehindVerbs sends behind verbs to the node: it goes when they are over.
func TestMessageBehindVerbs(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	from, _, box := correspondents(t, p.Fabric, 0, rdma.BoxOptions{})
	mustAdd(t, from, rdma.At(0, 0), 0)
	p.net.slow.Store(int64(2 * time.Millisecond))
	before := p.net.past.Load()
	check := func(_ *softPair, q request) bool {
		if over := p.net.past.Load() - before; q.op == uint8(rdma.Send) && over < 2 {
			t.Errorf("a message is posted when %d of 2 verbs in front of it are over", over)
		}
		return true
	}
	p.net.room.Store(&check)
	b := from.Batch()
	b.WriteWord(rdma.At(0, 64), 1)
	b.FetchAdd(rdma.At(0, 0), 1)
	b.Send(box.Addr(0), b.Alloc(8))
	if err := rdma.Do(from, b, testPatience); err != nil {
		t.Error(err)
	}
	p.net.room.Store(nil)
}

// TestClosedMailboxSays closes a mailbox that has got some of the messages that are in flight:
// these have arrived, and the others have not. What became of messages to one that ends without a
// word is not known.
func TestClosedMailboxSays(t *testing.T) {
	needsSoft(t)
	for _, says := range []bool{true, false} {
		p := newPool(t, shape{nodes: 1})
		from, _, box := correspondents(t, p.Fabric, 0, rdma.BoxOptions{})
		sends, over := 0, make(chan struct{})
		p.net.fail(func(_ *softPair, q request) status {
			if sends++; sends <= 2 {
				return statusSuccess
			}
			if says {
				return silent
			}
			<-over
			return statusRetries
		})
		b := post(t, from, box.Addr(0), 1, 2, 3, 4)
		if err := errors.Join(next(box, 1), next(box, 2)); err != nil {
			t.Fatal(err)
		}
		end, want := box.Close, rdma.ErrNoBox
		if !says {
			end, want = box.nodes.Close, rdma.ErrNodeDown
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		close(over)
		if err := from.Wait(b, rdma.All, testPatience); err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() {
			switch err := b.Op(i).Err; {
			case i < 2 && err != nil, i >= 2 && !errors.Is(err, want):
				t.Errorf("says so: %t: message %d ends in %v", says, i, err)
			}
		}
		if err := sendWord(from, box.Addr(0), 5); !errors.Is(err, rdma.ErrNoBox) {
			t.Errorf("a message to a mailbox that is gone ends in %v", err)
		}
	}
}

// TestLateMessage fences a sender off while its message is on its way: it arrives before that is
// over, or never. The same holds when the receiver's process does not hear of it: then the node
// cuts that off.
func TestLateMessage(t *testing.T) {
	needsSoft(t)
	const late = 30 * time.Millisecond
	for _, c := range []struct {
		hears bool
		fence func(p *pool, ep *Endpoint) error
		want  error
	}{
		{true, func(p *pool, ep *Endpoint) error { return p.Revoke(ep.Client()) }, rdma.ErrRevoked},
		{false, func(p *pool, ep *Endpoint) error { return p.Revoke(ep.Client()) }, rdma.ErrRevoked},
		{true, func(p *pool, _ *Endpoint) error { return errors.Join(p.advance(1), p.Fence(1)) }, rdma.ErrStale},
	} {
		p := newPool(t, shape{nodes: 1, lease: 100 * time.Millisecond})
		from, _, box := correspondents(t, p.Fabric, 0, rdma.BoxOptions{})
		p.net.slow.Store(int64(late))
		past := p.net.past.Load()
		b := post(t, from, box.Addr(0), 1)
		if !c.hears {
			eventually(t, "the message is there", func() bool { return p.net.past.Load() > past })
			box.mu.Lock()
		}
		err := c.fence(p, from)
		if !c.hears {
			box.mu.Unlock()
		}
		if err != nil {
			t.Fatal(err)
		}
		early := c.hears && box.Next() != nil
		time.Sleep(2 * late)
		if !early && box.Next() != nil {
			t.Errorf("%v, hears of it: %t: a message arrives late", c.want, c.hears)
		}
		if err := from.Wait(b, rdma.All, testPatience); err != nil {
			t.Error(err)
		}
		err = sendWord(from, box.Addr(0), 2)
		for until := from.Now() + testPatience; !c.hears && errors.Is(err, rdma.ErrNodeDown) && from.Now() < until; {
			from.Sleep(time.Millisecond) // its process was cut off, too
			err = sendWord(from, box.Addr(0), 2)
		}
		if !errors.Is(err, c.want) {
			t.Errorf("a message of a client that was fenced off ends in %v", err)
		}
	}
}

// TestMessageHeldBack shuts the node off by way of which a message comes. Neither end takes it,
// though the device has brought it, until the node says that it serves; without that it is lost
// with the connection.
func TestMessageHeldBack(t *testing.T) {
	for _, again := range []bool{true, false} {
		t.Run(map[bool]string{true: "and back", false: "for good"}[again], func(t *testing.T) {
			t.Parallel()
			g := newGated(t)
			from, _, box := correspondents(t, g.Fabric, 1, rdma.BoxOptions{})
			g.gates[1].close()
			g.overdue(t, 1)
			past := g.net.past.Load()
			b := post(t, from, box.Addr(1), 1)
			eventually(t, "the device has brought it", func() bool { return g.net.past.Load() > past })
			for range 5 {
				from.progress(0)
				if b.Finished() || box.Next() != nil {
					t.Fatalf("a message is taken by way of a node that is not known to serve: %v", b.Err())
				}
			}
			if again {
				g.gates[1].open()
				ends(t, from, b, nil)
				if err := next(box, 1); err != nil {
					t.Error(err)
				}
				return
			}
			ends(t, from, b, rdma.ErrNodeDown)
			eventually(t, "the connection breaks", func() bool { _, err := g.Reach(1); return err != nil })
			g.gates[1].open()
			eventually(t, "the mailbox is there again", func() bool {
				err := sendWord(from, box.Addr(1), 2)
				return err == nil
			})
			if err := next(box, 2); err != nil {
				t.Errorf("behind a connection that broke: %v", err)
			}
		})
	}
}

// TestJoinEndsMessages joins an epoch with a message of the last one on its way: it does not arrive
// later.
func TestJoinEndsMessages(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	from, _, box := correspondents(t, p.Fabric, 0, rdma.BoxOptions{})
	p.net.slow.Store(int64(30 * time.Millisecond))
	b := post(t, from, box.Addr(0), 1)
	if err := p.advance(1); err != nil {
		t.Fatal(err)
	}
	if _, err := from.Join(); err != nil {
		t.Fatal(err)
	}
	early := box.Next() != nil
	time.Sleep(60 * time.Millisecond)
	if late := box.Next() != nil; late {
		t.Error("a stale message arrives late")
	}
	if err := from.Wait(b, rdma.All, testPatience); err != nil || !errors.Is(b.Err(), rdma.ErrStale) && !early {
		t.Errorf("a message of the last epoch ends in %v, %v", err, b.Err())
	}
}

// TestJoinWithoutAnswer joins an epoch while the mailbox's process does not answer that it has
// ended the connection: a message that is on its way may arrive later, and no error denies that.
func TestJoinWithoutAnswer(t *testing.T) {
	t.Parallel()
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	from, _, box := correspondents(t, p.Fabric, 0, rdma.BoxOptions{})
	w := p.hold()
	b := post(t, from, box.Addr(0), 1)
	if err := p.advance(1); err != nil {
		t.Fatal(err)
	}
	box.mu.Lock()
	_, err := from.Join()
	box.mu.Unlock()
	w.open(t)
	if err != nil {
		t.Fatal(err)
	}
	ends(t, from, b, rdma.ErrNodeDown)
}

// TestGatherFails sends what cannot be gathered, since the node's verbs fail.
func TestGatherFails(t *testing.T) {
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	to, box := listener(t, p.Fabric, rdma.BoxOptions{Node: rdma.All})
	from, _ := listener(t, p.Fabric, rdma.BoxOptions{Node: 0, Number: 7})
	p.net.fail(func(_ *softPair, q request) status {
		if q.op == uint8(rdma.Read) {
			return statusRetries
		}
		return statusSuccess
	})
	b := from.Batch()
	b.Send(box.Addr(0), nil, rdma.Span{Addr: rdma.At(0, 0), Len: 4000}, rdma.Span{Addr: rdma.At(0, 8000), Len: 8})
	if err := from.Post(b); err != nil {
		t.Fatal(err)
	}
	ends(t, from, b, rdma.ErrNodeDown)
	p.net.fail(nil)
	if err := errors.Join(sendWord(from, box.Addr(0), 3), next(box, 3)); err != nil {
		t.Error(err)
	}
	_ = to
}

// TestTooLongMessage sends more than the mailbox takes. What comes behind goes on.
func TestTooLongMessage(t *testing.T) {
	p := newPool(t, shape{nodes: 1})
	from, _, box := correspondents(t, p.Fabric, 0, rdma.BoxOptions{Bytes: 8})
	b := from.Batch()
	b.Send(box.Addr(0), b.Alloc(9))
	if err := rdma.Do(from, b, testPatience); !errors.Is(err, rdma.ErrMessageSize) {
		t.Errorf("9 bytes to a mailbox that takes 8: %v", err)
	}
	if err := errors.Join(sendWord(from, box.Addr(0), 1), next(box, 1)); err != nil {
		t.Error(err)
	}
}

// TestLostBuffers has the device lose buffers of a mailbox. Once senders have come and gone for a
// while it has them again, and no message is lost by that.
func TestLostBuffers(t *testing.T) {
	t.Parallel()
	needsSoft(t)
	p := newPool(t, shape{nodes: 1})
	from, _, box := correspondents(t, p.Fabric, 0, rdma.BoxOptions{Slots: 3})
	queue := box.into.(*softReceives)
	queue.mu.Lock()
	queue.slots = queue.slots[:copy(queue.slots, queue.slots[2:])]
	queue.mu.Unlock()
	if err := errors.Join(sendWord(from, box.Addr(0), 1), next(box, 1)); err != nil {
		t.Fatal(err)
	}
	other, _ := listener(t, p.Fabric, rdma.BoxOptions{Node: rdma.All})
	if err := errors.Join(sendWord(other, box.Addr(0), 2), next(box, 2)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(lostAfter + lostAfter/10)
	p.net.fail(func(*softPair, request) status { return silent })
	flying := post(t, from, box.Addr(0), 3, 4)
	other.part(other.to[target{addr: rdma.Addr(box.Addr(0))}])
	eventually(t, "the connections were ended", func() bool {
		box.mu.Lock()
		defer box.mu.Unlock()
		return len(box.senders) == 0
	})
	p.net.fail(nil)
	ends(t, from, flying, nil)
	for i := uint64(3); i < 5; i++ {
		if err := next(box, i); err != nil {
			t.Error(err)
		}
	}
	full := post(t, from, box.Addr(0), 5, 6, 7) // the mailbox has place for all
	ends(t, from, full, nil)
}
