package rowan_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// remote is a log at a node, with its lender and its writer.
type remote struct {
	t      *testing.T
	o      rowan.Options
	table  *rowan.Table
	lender *rowan.Lender
	ep     rdma.Endpoint
	log    *rowan.Remote
}

func newRemote(t *testing.T, o rowan.Options, keep int) *remote {
	o.Ring, o.Segments, o.SegmentBytes, o.Own, o.Secret = 1, 12, 1024, 4, secret
	f := newMem(t, o, mtu)
	r := &remote{t: t, o: o, ep: open(t, f, "both"), log: rowan.NewRemote(o, o.Remotes-1, keep)}
	var err error
	if r.table, err = rowan.OpenTable(r.ep, o); err != nil {
		t.Fatal(err)
	}
	if r.lender, err = r.table.Lender(r.ep); err != nil {
		t.Fatal(err)
	}
	for log := range o.Remotes {
		if _, err := r.lender.Begin(log, 1); err != nil {
			t.Fatal(err)
		}
	}
	r.log.Begin(1)
	return r
}

// taken returns how many segments are not free.
func (r *remote) taken() int { return r.o.Segments - r.table.Free() }

// step has the lender go on, and returns segments that the writer is done with.
func (r *remote) step() (all []rowan.Segment) {
	r.t.Helper()
	if err := r.lender.Step(); err != nil {
		r.t.Fatal(err)
	}
	for s, ok := r.lender.Next(); ok; s, ok = r.lender.Next() {
		all = append(all, s)
	}
	return all
}

// free gives segments back.
func (r *remote) free(all []rowan.Segment) {
	r.t.Helper()
	if err := r.table.Commit(r.ep, all); err != nil {
		r.t.Fatal(err)
	}
	for _, s := range all {
		r.lender.Free(s)
	}
}

// ask has the writer ask for segments, if there is something to say or to ask for.
func (r *remote) ask(want bool) {
	r.t.Helper()
	b, err := r.log.Ask(r.ep)
	if err != nil || (b != nil) != want {
		r.t.Fatalf("asked %t, %v, want %t", b != nil, err, want)
	}
	if b == nil {
		return
	}
	if again, err := r.log.Ask(r.ep); again != nil || err != nil {
		r.t.Errorf("asked twice, %v", err)
	}
	if err := r.ep.Wait(b, rdma.All, patience); err != nil {
		r.t.Fatal(err)
	}
	r.log.Answered(b)
}

// lend lends the writer its first segments.
func (r *remote) lend() {
	r.t.Helper()
	r.ask(true)
	r.step()
	r.ask(true) // the first answer was that the lender has begun
	r.ask(false)
}

func (r *remote) place(urgent bool, want error) rowan.Place {
	r.t.Helper()
	at, err := r.log.Place(len(half), urgent)
	if !errors.Is(err, want) {
		r.t.Fatalf("place: %v, want %v", err, want)
	}
	return at
}

// write writes an entry to a place.
func (r *remote) write(at rowan.Place) {
	r.t.Helper()
	b := r.ep.Batch()
	defer b.Release()
	p := b.Alloc(rowan.Size(len(half)))
	r.log.Seal(at, 1, 1, half, p)
	b.Write(at.At, p)
	if err := rdma.Do(r.ep, b, patience); err != nil {
		r.t.Fatal(err)
	}
	r.log.Landed(at)
}

// half takes half of a segment.
var half = bytes.Repeat([]byte("x"), 512-rowan.HeaderBytes)

// TestRemote: a writer fills the segments that it is lent in their order, and says of each that it
// is done with it when all that it has written there has landed, and not before.
func TestRemote(t *testing.T) {
	r := newRemote(t, rowan.Options{Remotes: 2, Lent: 4}, 0)
	r.lend()
	var places []rowan.Place
	for range 5 {
		places = append(places, r.place(false, nil))
	}
	if places[0].Segment != places[1].Segment || places[1].Segment == places[2].Segment ||
		places[2].Segment != places[3].Segment {
		t.Errorf("places %+v, want two to a segment", places)
	}
	for _, i := range []int{0, 2, 3} {
		r.write(places[i])
	}
	r.ask(false)
	if all := r.step(); len(all) > 0 {
		t.Errorf("segments %v are done with, with an entry in flight to the first", all)
	}
	r.write(places[1])
	r.ask(true)
	all := r.step()
	if want := []rowan.Segment{places[0].Segment, places[2].Segment}; !slices.Equal(all, want) {
		t.Fatalf("segments %v are done with, want %v", all, want)
	}
	for _, s := range all {
		n := 0
		err := r.lender.Digest(s, func(e *rowan.Entry) error {
			if n++; !bytes.Equal(e.Data, half) || e.Kind != 1 {
				t.Errorf("entry %d is not as it was written", n)
			}
			return nil
		})
		if err != nil || n != 2 {
			t.Errorf("segment %v has %d entries, %v, want 2", s, n, err)
		}
	}
	if n := r.taken(); n != 2+r.o.Lent {
		t.Errorf("%d segments are taken, want %d", n, 2+r.o.Lent)
	}
	r.free(all)
	r.step()
	if n := r.taken(); n != r.o.Lent {
		t.Errorf("%d segments are taken, want %d", n, r.o.Lent)
	}
}

// TestFlippedDone flips each bit of the word in which a writer says what it has finished: of more
// segments than it was lent none is taken for finished, and the writer goes on when it asks again.
func TestFlippedDone(t *testing.T) {
	for bit := range 64 {
		r := newRemote(t, rowan.Options{Remotes: 1, Lent: 4}, 0)
		r.lend()
		at := r.table.DoneAt(0)
		word, err := rdma.ReadWord(r.ep, "read", at, patience)
		if err != nil {
			t.Fatal(err)
		}
		b := r.ep.Batch()
		b.WriteWord(at, word^1<<bit)
		if err := rdma.Do(r.ep, b, patience); err != nil {
			t.Fatal(err)
		}
		if all := r.step(); len(all) > 0 && (word^1<<bit)&(1<<32-1) > uint64(r.o.Lent) {
			t.Errorf("bit %d: segments %v are done with", bit, all)
		}
		r.log.Want()
		r.ask(true)
		if all := r.step(); len(all) > 0 {
			t.Errorf("bit %d: segments %v are done with, behind the writer's word", bit, all)
		}
	}
}

// TestRemoteFull: a log has no segments before it has a writer, and no more than it may have. What
// is not urgent leaves some for what is.
func TestRemoteFull(t *testing.T) {
	r := newRemote(t, rowan.Options{Remotes: 2, Lent: 4}, 2)
	r.step()
	if n := r.taken(); n > 0 {
		t.Errorf("%d segments are taken by logs without a writer", n)
	}
	r.place(true, rowan.ErrAsked)
	r.lend()
	if n := r.taken(); n != r.o.Lent {
		t.Errorf("a log has %d segments, want %d", n, r.o.Lent)
	}
	for range 4 {
		r.place(false, nil)
	}
	r.place(false, rowan.ErrAsked)
	for range 4 {
		r.place(true, nil)
	}
	r.place(true, rowan.ErrAsked)
}

// TestReturned: places that are given back take no room, in the next segment, too, unless another
// has the place behind.
func TestReturned(t *testing.T) {
	r := newRemote(t, rowan.Options{Remotes: 1, Lent: 4}, 0)
	r.place(true, rowan.ErrAsked)
	r.lend()
	for range 2 { // which fill a segment
		var first rowan.Place
		for i := range 100 {
			at := r.place(true, nil)
			if i == 0 {
				first = at
			}
			if at != first {
				t.Fatalf("place %d is at %s, want %s", i, at.At, first.At)
			}
			r.log.Return(at)
		}
		r.write(r.place(true, nil))
	}
	before, behind := r.place(true, nil), r.place(true, nil)
	r.log.Return(before)
	if at := r.place(true, nil); at == behind || at == before {
		t.Errorf("a place at %s is another's, or ahead of it at %s", at.At, behind.At)
	}
}

// TestRemoteAsked: a log is full when its lender has looked and has no segment, not when it has not
// looked, or has segments again.
func TestRemoteAsked(t *testing.T) {
	r := newRemote(t, rowan.Options{Remotes: 1, Lent: 4}, 0)
	var used []rowan.Segment
	full := errors.New("not yet")
	for range 100 {
		at, err := r.log.Place(len(half), true)
		if err == nil {
			r.write(at)
			continue
		}
		if full = err; errors.Is(err, rdma.ErrFull) {
			break
		}
		r.ask(true)
		used = append(used, r.step()...)
	}
	if n := r.taken(); !errors.Is(full, rdma.ErrFull) || !r.log.Full() || n != r.o.Segments-r.o.Own {
		t.Fatalf("with %d segments taken: %v", n, full)
	}
	r.free(used)
	r.step()
	r.ask(true)
	if r.log.Full() {
		t.Error("full, with segments again")
	}
	r.write(r.place(true, nil))
}

// TestRoom: entries of whatever lengths have places as long as they take no more than the room that
// there is said to be.
func TestRoom(t *testing.T) {
	r := newRemote(t, rowan.Options{Remotes: 1, Lent: 6}, 0)
	const most = 400
	length := func() int { return 64 + r.ep.Rand().IntN(most-63) }
	for range 200 {
		r.free(r.step())
		room := r.log.Room(most)
		for n := length(); (n+63)/64*64 <= room; n = length() {
			at, err := r.log.Place(n-rowan.HeaderBytes, true)
			if err != nil {
				t.Fatalf("an entry of %d bytes, with room for %d: %v", n, room, err)
			}
			r.log.Landed(at)
			room -= (n + 63) / 64 * 64
		}
		r.log.Want()
		r.ask(true)
	}
	if r.table.Pushes() < 200 {
		t.Errorf("%d segments were used", r.table.Pushes())
	}
}

// settle settles the logs up to a stamp, and returns how many entries it finds.
func (r *remote) settle(upTo uint64) (n int) {
	r.t.Helper()
	err := r.lender.Settle(func(uint16) uint64 { return upTo },
		func(rowan.Segment, *rowan.Entry) error { n++; return nil })
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// begin has the lender begin with a term of the writer's log, and of the other one, which has none.
func (r *remote) begin(term uint64) (left []rowan.Left) {
	r.t.Helper()
	for log := range r.o.Remotes {
		of := term
		if log != r.o.Remotes-1 {
			of = 0
		}
		all, err := r.lender.Begin(log, of)
		if err != nil {
			r.t.Fatal(err)
		}
		left = append(left, all...)
	}
	return left
}

// TestRemoteTerms: whatever became of the writer and of the lender, in the next term the entries of
// the last one are settled, each once, and the log goes on behind them.
func TestRemoteTerms(t *testing.T) {
	for _, died := range []string{"nothing", "writer", "lender", "both"} {
		t.Run(died, func(t *testing.T) {
			r := newRemote(t, rowan.Options{Remotes: 2, Lent: 4}, 0)
			r.lend()
			first := []rowan.Place{r.place(false, nil), r.place(false, nil), r.place(false, nil)}
			for _, at := range first {
				r.write(at)
			}
			r.log.Want()
			r.ask(true) // it says that it is done with a segment, and the lender does not hear of that
			if died == "writer" || died == "both" {
				r.log = rowan.NewRemote(r.o, r.o.Remotes-1, 0)
			}
			if died == "lender" || died == "both" {
				var err error
				if r.table, err = rowan.OpenTable(r.ep, r.o); err == nil {
					r.lender, err = r.table.Lender(r.ep)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			r.log.Begin(2)
			r.ask(true)
			r.place(true, rowan.ErrAsked) // the lender has not begun
			if n := r.settle(1<<32 - 1); n > 0 {
				t.Errorf("%d entries of the term before the first are settled", n)
			}
			if n := r.settle(2<<32 - 1); n != 3 {
				t.Errorf("%d entries are settled, want 3", n)
			}
			left := r.begin(2)
			if len(left) != 1 || left[0].Segment != first[0].Segment || left[0].Behind != first[1].At.Add(512) {
				t.Errorf("segments %+v are left, want the full one", left)
			}
			r.ask(true)
			r.place(true, rowan.ErrAsked) // what was READ may be of before
			r.ask(true)
			next := r.place(false, nil)
			if next.Segment != first[2].Segment || next.At != first[2].At.Add(512) {
				t.Errorf("the log goes on at %+v, want behind %+v", next, first[2])
			}
			b := r.ep.Batch()
			p := b.Alloc(rowan.Size(len(half)))
			r.log.Seal(next, 1, 2, half, p)
			b.Write(next.At, p)
			if err := rdma.Do(r.ep, b, patience); err != nil {
				t.Fatal(err)
			}
			b.Release()
			r.log.Landed(next)
			for range 2 {
				r.write(r.place(false, nil))
			}
			r.ask(true)
			all := r.step()
			if len(all) != 1 || all[0] != next.Segment {
				t.Fatalf("the writer is done with %+v", all)
			}
			n := 0
			if err := r.lender.Digest(all[0], func(e *rowan.Entry) error {
				if n++; e.Stamp>>32 != 2 {
					t.Error("an entry comes again that was settled")
				}
				return nil
			}); err != nil || n != 1 {
				t.Errorf("%d entries come when the segment is digested, %v, want 1", n, err)
			}
			// Without a writer all is left, however full.
			if n := r.settle(3<<32 - 1); n != 2 {
				t.Errorf("%d entries are settled, want 2", n)
			}
			if left, err := r.lender.Begin(r.o.Remotes-1, 0); err != nil || len(left) != 4 {
				t.Errorf("%d segments are left of a log without a writer, %v", len(left), err)
			}
		})
	}
}
