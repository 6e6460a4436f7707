package rowan_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// writer fills a remote log.
type writer struct {
	t   *testing.T
	ep  rdma.Endpoint
	log *rowan.Remote
}

// ask asks for segments, if there is something to say or to ask for.
func (w *writer) ask(want bool) {
	w.t.Helper()
	b, err := w.log.Ask(w.ep)
	if err != nil || (b != nil) != want {
		w.t.Fatalf("asked %t, %v, want %t", b != nil, err, want)
	}
	if b == nil {
		return
	}
	if again, err := w.log.Ask(w.ep); again != nil || err != nil {
		w.t.Errorf("asked twice, %v", err)
	}
	if err := w.ep.Wait(b, rdma.All, patience); err != nil {
		w.t.Fatal(err)
	}
	w.log.Answered(b)
}

// write writes an entry to a place.
func (w *writer) write(at rowan.Place, data []byte) {
	w.t.Helper()
	b := w.ep.Batch()
	defer b.Release()
	p := b.Alloc(rowan.Size(len(data)))
	w.log.Seal(at, 1, data, p)
	b.Write(at.At, p)
	if err := rdma.Do(w.ep, b, patience); err != nil {
		w.t.Fatal(err)
	}
}

// TestRemote: a writer fills the segments that it is lent in their order, and says of each that it is done with it when
// all that it has written there has landed, and not before. What is not urgent leaves segments for what is.
func TestRemote(t *testing.T) {
	o := rowan.Options{Ring: 1, Segments: 12, SegmentBytes: 1024, Own: 4, Secret: secret, Remotes: 2, Lent: 4}
	f := newMem(t, o, mtu)
	ep := open(t, f, "lender")
	table, err := rowan.OpenTable(ep, o)
	if err != nil {
		t.Fatal(err)
	}
	lender := table.Lender(ep)
	w := &writer{t, open(t, f, "writer"), rowan.NewRemote(o, 1, 2)}
	step := func() (all []rowan.Segment) {
		t.Helper()
		if err := lender.Step(); err != nil {
			t.Fatal(err)
		}
		for s, ok := lender.Next(); ok; s, ok = lender.Next() {
			all = append(all, s)
		}
		return all
	}
	data := bytes.Repeat([]byte("x"), 512-rowan.HeaderBytes) // two to a segment
	place := func(urgent bool, want error) rowan.Place {
		t.Helper()
		at, err := w.log.Place(len(data), urgent)
		if !errors.Is(err, want) {
			t.Fatalf("place: %v, want %v", err, want)
		}
		return at
	}

	step()
	if table.Free() != o.Segments {
		t.Error("a log without a writer has segments")
	}
	place(true, rdma.ErrFull)
	w.ask(true)
	step()
	w.ask(true) // the first answer was none
	w.ask(false)
	if n := o.Segments - table.Free(); n != o.Lent {
		t.Errorf("a log has %d segments, want %d", n, o.Lent)
	}

	var places []rowan.Place
	for range 4 {
		places = append(places, place(false, nil))
	}
	place(false, rdma.ErrFull)
	places = append(places, place(true, nil))
	if places[0].Segment != places[1].Segment || places[1].Segment == places[2].Segment || places[2].Segment != places[3].Segment {
		t.Errorf("places %+v, want two to a segment", places)
	}
	for i := range 4 {
		if i != 1 {
			w.write(places[i], data)
			w.log.Landed(places[i])
		}
	}
	w.ask(true)
	if all := step(); len(all) > 0 {
		t.Errorf("segments %v are done with, with an entry in flight to the first", all)
	}
	w.write(places[1], data)
	w.log.Landed(places[1])
	w.ask(true)
	all := step()
	if want := []rowan.Segment{places[0].Segment, places[2].Segment}; !slices.Equal(all, want) {
		t.Fatalf("segments %v are done with, want %v", all, want)
	}
	for _, s := range all {
		n := 0
		err := lender.Digest(s, func(e *rowan.Entry) error {
			if n++; !bytes.Equal(e.Data, data) || e.Kind != 1 {
				t.Errorf("entry %d is not as it was written", n)
			}
			return nil
		})
		if err != nil || n != 2 {
			t.Errorf("segment %v has %d entries, %v, want 2", s, n, err)
		}
	}
	if n := o.Segments - table.Free(); n != 2+o.Lent {
		t.Errorf("%d segments are taken, want %d", n, 2+o.Lent)
	}
	if err := table.Commit(ep, all); err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		lender.Free(s)
	}
	step()
	if n := o.Segments - table.Free(); n != o.Lent {
		t.Errorf("%d segments are taken, want %d", n, o.Lent)
	}

	w.log.Want()
	w.ask(true)
	for range 2*o.Lent - 1 - 2*2 {
		place(false, nil)
	}
	place(false, rdma.ErrFull)
	if room, at := w.log.Room(len(data)+rowan.HeaderBytes), place(true, nil); room < 512 {
		t.Errorf("room for %d bytes, and there is a place at %s", room, at.At)
	}
}

// TestRoom: entries of whatever lengths have places as long as they take no more than the room that there is said to be.
func TestRoom(t *testing.T) {
	o := rowan.Options{Ring: 1, Segments: 12, SegmentBytes: 1024, Own: 4, Secret: secret, Remotes: 1, Lent: 6}
	const most = 400
	f := newMem(t, o, mtu)
	ep := open(t, f, "lender")
	table, err := rowan.OpenTable(ep, o)
	if err != nil {
		t.Fatal(err)
	}
	lender := table.Lender(ep)
	w := &writer{t, ep, rowan.NewRemote(o, 0, 0)}
	for range 200 {
		if err := lender.Step(); err != nil {
			t.Fatal(err)
		}
		var done []rowan.Segment
		for s, ok := lender.Next(); ok; s, ok = lender.Next() {
			done = append(done, s)
		}
		if err := table.Commit(ep, done); err != nil {
			t.Fatal(err)
		}
		for _, s := range done {
			lender.Free(s)
		}
		room := w.log.Room(most)
		for n := 64 + ep.Rand().IntN(most-63); (n+63)/64*64 <= room; n = 64 + ep.Rand().IntN(most-63) {
			at, err := w.log.Place(n-rowan.HeaderBytes, true)
			if err != nil {
				t.Fatalf("an entry of %d bytes, with room for %d: %v", n, room, err)
			}
			w.log.Landed(at)
			room -= (n + 63) / 64 * 64
		}
		w.log.Want()
		w.ask(true)
	}
	if table.Pushes() < 200 {
		t.Errorf("%d segments were used", table.Pushes())
	}
}
