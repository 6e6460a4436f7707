package rowan_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan"
)

// filling is a log with a receiver that steps when it is told to.
type filling struct {
	t    *testing.T
	o    rowan.Options
	r    *rowan.Receiver
	ep   rdma.Endpoint // the senders'
	used []rowan.Segment
}

func newFilling(t *testing.T, streams bool, reserve, urgent int) *filling {
	o := rowan.Options{
		Node: 0, Ring: 2, Segments: 12, SegmentBytes: 4096, Ahead: 12, Reserve: reserve,
		Sources: 8, Urgent: urgent, Credit: 3000, Secret: secret,
	}
	var f rdma.Fabric
	if streams {
		o = streamed(o)
		f = sim.New(sim.Options{MTU: mtu, RingStreams: true, Memory: o.Size()})
		t.Cleanup(func() { f.Close() })
	} else {
		f = newMem(t, o, mtu)
	}
	ep := open(t, f, "receiver")
	l := &filling{t: t, o: o, ep: open(t, f, "sender")}
	var err error
	if l.r, err = rowan.Open(ep, o); err != nil {
		t.Fatal(err)
	}
	l.step()
	t.Cleanup(func() { l.r.Close() })
	return l
}

// step has the receiver look, and digest what is used.
func (l *filling) step() {
	if err := l.r.Step(); err != nil {
		l.t.Fatal(err)
	}
	for seg, ok := l.r.Next(); ok; seg, ok = l.r.Next() {
		if err := l.r.Digest(seg, func(*rowan.Entry) error { return nil }); err != nil {
			l.t.Fatal(err)
		}
		l.used = append(l.used, seg)
	}
}

// sender returns a source, a new one each time.
func (l *filling) sender(source int, reserved bool) *rowan.Sender {
	o := senderOptions(l.o, source)
	o.Reserved = reserved
	s, err := rowan.NewSender(l.ep, o)
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

// senders returns all that need leave.
func (l *filling) senders() (all []*rowan.Sender) {
	for source := range l.o.Sources - 1 {
		all = append(all, l.sender(source, false))
	}
	return all
}

// add has a source append an entry of up to a kilobyte. The receiver looks while it is in flight,
// as far as the sender knows.
func (l *filling) add(s *rowan.Sender, i int) error {
	n := 8 + i*37%1000
	if err := s.Reserve(n); err != nil {
		return err
	}
	return l.land(s, n)
}

// land has a source append an entry of n bytes that it has leave for.
func (l *filling) land(s *rowan.Sender, n int) error {
	b := l.ep.Batch()
	defer b.Release()
	op, err := s.Add(b, 1, make([]byte, n))
	if err != nil {
		return err
	}
	posted := l.ep.Now()
	_ = rdma.Do(l.ep, b, patience) // the op says the same
	return s.Acknowledged(op, posted)
}

// fill has sources append until the log is full for each.
func (l *filling) fill(senders ...*rowan.Sender) (entries int) {
	for full, behind := 0, 0; full < len(senders); l.step() {
		for k := range 2 * len(senders) {
			switch err := l.add(senders[k%len(senders)], entries); {
			case errors.Is(err, rdma.ErrFull):
				full++
			case errors.Is(err, rowan.ErrAsked) && behind < 1000:
				behind++
			case err != nil:
				l.t.Fatalf("entry %d of those that have leave: %v", entries, err)
			default:
				entries, full, behind = entries+1, 0, 0
			}
		}
	}
	return entries
}

// TestFull fills a log without giving segments back. Senders learn in time that it is full, and
// none meets a ring that is dry. Sources that need no leave use the reserve. When there is room
// again, all go on. Leave of senders that die is not lost for the next ones.
func TestFull(t *testing.T) {
	for _, reserve := range []int{0, 3} {
		t.Run(fmt.Sprint(reserve), func(t *testing.T) { testFull(t, newFilling(t, false, reserve, 0)) })
		t.Run(fmt.Sprint("streams/", reserve), func(t *testing.T) { testFull(t, newFilling(t, true, reserve, 0)) })
	}
}

func testFull(t *testing.T, l *filling) {
	senders := l.senders()
	if n := l.fill(senders...); n < 20 {
		t.Errorf("full with %d entries", n)
	}
	urgent := l.sender(7, true)
	for taken := 0; taken < l.o.Reserve*3500; taken += 640 {
		if err := urgent.Append(1, make([]byte, 600), 0); err != nil {
			t.Fatalf("behind %d bytes of the reserve: %v", taken, err)
		}
	}
	for round := range 20 {
		for _, seg := range l.used {
			l.r.Free(seg)
		}
		l.used = nil
		l.step()
		l.step()
		for range round % 4 * 3 { // they die with all that they could get
			s := l.sender(round%3, false)
			l.step()
			for s.Reserve(200) == nil {
			}
			senders[round%3] = l.sender(round%3, false)
			l.step()
		}
		if n := l.fill(senders...); n < 10 {
			t.Fatalf("round %d: full with %d entries, when segments were free again", round, n)
		}
	}
}

// TestAsked: a log is full when its receiver has looked and has no more, not when it has not
// looked, or has room again.
func TestAsked(t *testing.T) {
	l := newFilling(t, false, 0, 0)
	s := l.sender(0, false)
	if err := s.Reserve(300); !errors.Is(err, rowan.ErrAsked) {
		t.Errorf("before the receiver has looked: %v", err)
	}
	l.step()
	l.fill(s)
	if err := s.Reserve(1200); !errors.Is(err, rdma.ErrFull) {
		t.Errorf("when it is full: %v", err)
	}
	for _, seg := range l.used {
		l.r.Free(seg)
	}
	l.step()
	l.step()
	n, err := 0, error(nil)
	for ; err == nil; n++ {
		err = s.Reserve(300)
	}
	if n < 2 || !errors.Is(err, rowan.ErrAsked) {
		t.Errorf("when it has room again, behind %d entries in flight: %v", n, err)
	}
}

// TestInFlight: what was reserved counts until it is known to have landed.
func TestInFlight(t *testing.T) {
	l := newFilling(t, false, 0, 0)
	senders := l.senders()
	type held struct {
		s    *rowan.Sender
		data int
	}
	var all []held
	for full := 0; full < 3*len(senders); l.step() {
		for _, s := range senders {
			if err := s.Reserve(300); errors.Is(err, rowan.ErrAsked) { // it knows of nothing that is spent
				full++
			} else if err != nil {
				t.Fatal(err)
			} else {
				all, full = append(all, held{s, 300}), 0
			}
		}
		if len(all) > 10_000 {
			t.Fatal("there is leave without end")
		}
	}
	for i, h := range all {
		if err := l.land(h.s, h.data); err != nil {
			t.Fatalf("entry %d of %d that had leave: %v", i, len(all), err)
		}
	}
}

// TestLateStreams fills a log with entries of one stream, while a source has leave for entries of
// others: these begin segments yet.
func TestLateStreams(t *testing.T) {
	l := newFilling(t, true, 0, 0)
	senders := append(l.senders(), l.sender(7, false))
	l.step()
	late := []int{60, 200}
	for _, n := range late {
		if err := senders[0].Reserve(n); err != nil {
			t.Fatal(err)
		}
	}
	entries := 0
	for full := 0; full < 4*len(senders); l.step() {
		for _, s := range senders {
			err := s.Reserve(8)
			if errors.Is(err, rdma.ErrFull) {
				full++
				continue
			}
			if err == nil {
				err = l.land(s, 8)
			}
			if entries, full = entries+1, 0; err != nil {
				t.Fatalf("entry %d, of one stream: %v", entries, err)
			}
		}
	}
	if entries < 64*(l.o.Segments-8) {
		t.Errorf("full with %d entries of a stride", entries)
	}
	for _, n := range late {
		if err := l.land(senders[0], n); err != nil {
			t.Errorf("an entry of %d bytes, with leave, of another stream: %v", n, err)
		}
	}
}

// TestUrgent: when the log is full for others, urgent sources have leave for the reserve, and no
// more. What they have of it is not kept free once more.
func TestUrgent(t *testing.T) {
	l := newFilling(t, false, 3, 2)
	var others []*rowan.Sender
	for source := range 6 {
		others = append(others, l.sender(source, false))
	}
	l.fill(others...)
	urgent := []*rowan.Sender{l.sender(6, false), l.sender(7, false)}
	if n := l.fill(urgent...); n < 5 || n > 40 {
		t.Errorf("the reserve has room for %d entries", n)
	}
	for _, seg := range l.used {
		l.r.Free(seg)
	}
	l.used = nil
	l.step()
	l.step()
	if n := l.fill(urgent[0]); n < 20 {
		t.Errorf("urgent sources have room for %d entries when all is free", n)
	}
	if n := l.fill(others...); n > 40 {
		t.Errorf("then others have room for %d entries", n)
	}
	l = newFilling(t, false, 3, 2)
	with := l.fill(l.sender(0, false)) // all others have leave that they do not use
	l = newFilling(t, false, 3, 0)
	if without := l.fill(l.sender(0, false)); with < without+5 {
		t.Errorf("there is room for %d entries beside what urgent sources have of the reserve, "+
			"%d if they are not urgent",
			with, without)
	}
}
