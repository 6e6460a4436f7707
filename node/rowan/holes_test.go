package rowan_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// appendRaw appends bytes as they are.
func appendRaw(t *testing.T, ep rdma.Endpoint, p []byte) {
	b := ep.Batch()
	defer b.Release()
	buf := b.Alloc(len(p))
	copy(buf, p)
	b.Append(rdma.RingAt(0, 2), buf)
	if err := rdma.Do(ep, b, patience); err != nil {
		t.Error(err)
	}
}

// TestForged appends what looks like entries, but is data: of an entry that is whole, and of blocks
// that are torn. Without the secret none can be made; a copy of one is none behind it.
func TestForged(t *testing.T) {
	ring := rdma.RingAt(0, 2)
	f := newMem(t, testLog, 4096)
	ep, sender := open(t, f, "receiver"), open(t, f, "sender")
	r, err := rowan.Open(ep, testLog)
	if err == nil {
		err = r.Step()
	}
	if err != nil {
		t.Fatal(err)
	}
	raw := func(p []byte) { appendRaw(t, sender, p) }
	entry := func(secret uint64, source uint16, stamp uint64, data string) []byte {
		return rowan.Seal(4096, secret, ring, 1, source, stamp, []byte(data))
	}
	holding := func(source uint16, stamp uint64, inner []byte) []byte { // at the beginning of a stride
		return entry(secret, source, stamp, string(make([]byte, 40))+string(inner))
	}
	torn := func(p []byte) []byte { p[20] ^= 1; return p }

	raw(entry(secret, 1, 10, "first"))
	raw(holding(1, 11, entry(secret, 2, 5, "in an entry that is whole")))
	raw(torn(holding(1, 12, entry(0, 2, 6, "made without the secret"))))
	raw(torn(holding(1, 13, entry(secret, 1, 10, "first"))))
	raw(rowan.Seal(4096, secret, rdma.RingAt(0, 3), 1, 3, 1, []byte("of another log")))
	raw(entry(secret, uint16(testLog.Sources), 1, "of no source"))
	raw(entry(secret, 1, 14, "last"))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	var found []string
	if r, err = rowan.Open(ep, testLog); err == nil {
		_, err = r.Recover(func(_ rowan.Segment, e *rowan.Entry) error {
			if e.Stamp == 11 {
				e.Data = []byte("whole")
			}
			found = append(found, string(e.Data))
			return nil
		})
	}
	if want := []string{"first", "whole", "last"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("found %q, %v, want %q", found, err, want)
	}
}

// TestBegun has an entry of which the second block lands when all segments have been used several
// times. The segment where it begins is begun, and not free before. The segment in which it ends
// has the entry. Another entry lacks a block.
func TestBegun(t *testing.T) {
	o := rowan.Options{
		Ring: 2, Segments: 8, SegmentBytes: 1024, Ahead: 4, Sources: 3, Credit: noCredit, Secret: secret,
	}
	f := newMem(t, o, mtu)
	ep, sender := open(t, f, "receiver"), open(t, f, "sender")
	r, err := rowan.Open(ep, o)
	if err == nil {
		err = r.Step()
	}
	others, err2 := rowan.NewSender(sender, senderOptions(o, 1))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	var found []string
	var all []rowan.Segment
	// run appends entries of another source until so many segments more were used, and gives all
	// back, or none.
	run := func(segments int, back bool) {
		for until := len(all) + segments; len(all) < until; {
			if err := others.Append(1, fill(make([]byte, 200), 1, 1), patience); err != nil {
				t.Fatal(err)
			}
			if err := r.Step(); err != nil {
				t.Fatal(err)
			}
			for seg, ok := r.Next(); ok; seg, ok = r.Next() {
				if err := r.Digest(seg, func(e *rowan.Entry) error {
					if e.Source != 1 {
						found = append(found,
							fmt.Sprintf("%d of %d bytes in %d blocks", e.Source, len(e.Data), len(e.Blocks)))
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if all = append(all, seg); back {
					r.Free(seg)
				}
			}
		}
	}
	late := rowan.Seal(mtu, secret, rdma.RingAt(0, 2), 1, 0, 7, make([]byte, 300))
	holed := rowan.Seal(mtu, secret, rdma.RingAt(0, 2), 1, 2, 7, make([]byte, 600))
	appendRaw(t, sender, late[:mtu])
	appendRaw(t, sender, holed[:mtu])
	for range 2 { // the second one as a copy
		appendRaw(t, sender, holed[2*mtu:])
	}
	run(30, true)
	if r.Released(all[0]) || !r.Released(all[1]) {
		t.Error("the segment is free in which an entry begins, or the one behind it is not")
	}
	if !r.Begun(all[0]) || r.Begun(all[1]) {
		t.Error("the segment is not begun in which an entry begins, or the one behind it is")
	}
	appendRaw(t, sender, late[mtu:])
	run(3, false)
	if want := []string{"0 of 300 bytes in 2 blocks"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
	if err := r.Step(); err != nil || !r.Released(all[0]) || r.Begun(all[0]) {
		t.Errorf("the segment is not free in which an entry began that has ended: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestLate has entries that reach memory milliseconds late, on a fabric that does not count them:
// what is acknowledged is in its segment when that is settled, once and for all.
func TestLate(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	o := rowan.Options{
		Ring: 2, Segments: 1000, SegmentBytes: 1024, Ahead: 200, Sources: sources, Credit: noCredit, Secret: secret,
	}
	s := sim.New(sim.Options{Seed: 1, MTU: mtu, Memory: o.Size(), DMAProb: 0.3, DMAMax: 6 * time.Millisecond})
	defer s.Close()
	found, acked := map[[2]int]bool{}, map[[2]int]bool{}
	left, late := sources, 0
	s.GoAt(0, "receiver", func(ep rdma.Endpoint) {
		r, err := rowan.Open(ep, o)
		for last := time.Duration(0); err == nil && (left > 0 || ep.Now() < last+10*time.Millisecond); {
			ep.Sleep(50 * time.Microsecond)
			if err = r.Step(); left > 0 {
				last = ep.Now()
			}
			for seg, ok := r.Next(); ok && err == nil; seg, ok = r.Next() {
				err = r.Digest(seg, func(e *rowan.Entry) error {
					found[[2]int{int(e.Source), int(binary.LittleEndian.Uint64(e.Data))}] = true
					return nil
				})
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	for source := range sources {
		s.Go(fmt.Sprint("sender ", source), func(ep rdma.Endpoint) {
			defer func() { left-- }()
			w, err := rowan.NewSender(ep, senderOptions(o, source))
			ep.Sleep(100 * time.Microsecond)
			for i := 0; err == nil && i < 300; i++ {
				b := ep.Batch()
				op, _ := w.Add(b, 1, fill(make([]byte, lengths[i%len(lengths)]), source, i))
				posted := ep.Now()
				if err = ep.Post(b); err == nil {
					err = ep.Wait(b, rdma.All, patience)
				}
				if err == nil {
					err = w.Acknowledged(op, posted)
				}
				acked[[2]int{source, i}] = err == nil
				if errors.Is(err, rowan.ErrLate) {
					late, err = late+1, nil
				}
				b.Release()
			}
			for i := 0; err == nil && i < 30; i++ { // so that the segments before are settled
				err = w.Append(1, fill(make([]byte, 100), source, 1<<20), patience)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	lost := 0
	for source := range sources {
		for i := range 300 {
			if k := [2]int{source, i}; acked[k] && !found[k] {
				lost++
			}
		}
	}
	if lost > 0 || late == 0 {
		t.Errorf("%d entries that were acknowledged are lost; %d were late", lost, late)
	}
}

// TestStrawman: places do not overlap, and an append takes two trips; Rowan's takes one.
func TestStrawman(t *testing.T) {
	f := newMem(t, testLog, 4096)
	ep := open(t, f, "sender")
	m := rowan.Strawman{Tail: rdma.At(0, 0), Log: rdma.At(0, 64), Size: 4096}
	before := ep.Counters().Trips
	for i := range 10 {
		at, err := m.Append(ep, make([]byte, 100), patience)
		if want := m.Log.Add(uint64(128 * i)); err != nil || at != want {
			t.Errorf("append at %s, %v, want %s", at, err, want)
		}
	}
	if trips := ep.Counters().Trips - before; trips != 20 {
		t.Errorf("10 appends take %d trips", trips)
	}
	for range 30 {
		if _, err := m.Append(ep, make([]byte, 100), patience); err != nil && !errors.Is(err, rdma.ErrFull) {
			t.Error(err)
		}
	}
	if _, err := m.Append(ep, make([]byte, 100), patience); !errors.Is(err, rdma.ErrFull) {
		t.Errorf("append to a log that is full: %v", err)
	}
}

// TestRates: on the model of the paper's machines, with the strawman's word in the NIC's memory,
// that does less than 10 million appends of 64 bytes a second (section 3.2.1), and Rowan what its
// receiver's NIC does.
func TestRates(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	p, err := sim.LookupProfile("rowan-testbed")
	if err != nil {
		t.Fatal(err)
	}
	const clients, each = 200, 300
	log := rowan.Options{
		Base: rdma.Stride, Ring: 2, Segments: 16, SegmentBytes: 1 << 20, Ahead: 16, Sources: clients, Credit: noCredit,
		Secret: secret,
	}
	rate := func(prepare func(ep rdma.Endpoint, client int) (func(i int) error, error)) float64 {
		o := p.Options(1, 1)
		o.Memory, o.Device = log.Base+log.Size(), []sim.Range{{Node: 0, Offset: 0, Bytes: 8}}
		s := sim.New(o)
		defer s.Close()
		var from, to time.Duration
		s.GoAt(0, "receiver", func(ep rdma.Endpoint) {
			r, err := rowan.Open(ep, log)
			if err == nil {
				err = r.Step()
			}
			from = ep.Now() + 10*time.Microsecond
			left := clients
			for c := range clients {
				s.Go(fmt.Sprint("client ", c), func(ep rdma.Endpoint) {
					defer func() { left-- }()
					op, err := prepare(ep, c)
					ep.Sleep(from - ep.Now())
					for i := 0; i < each && err == nil; i++ {
						err = op(i)
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			for left > 0 {
				ep.Sleep(time.Microsecond)
			}
			if to = ep.Now(); err != nil {
				t.Error(err)
			}
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		return clients * each / (to - from).Seconds() / 1e6
	}
	straw := rate(func(ep rdma.Endpoint, _ int) (func(int) error, error) {
		m := rowan.Strawman{Tail: rdma.At(0, 0), Log: rdma.At(0, rdma.Stride), Size: log.Size()}
		return func(int) error { _, err := m.Append(ep, make([]byte, 64), patience); return err }, nil
	})
	ours := rate(func(ep rdma.Endpoint, client int) (func(int) error, error) {
		s, err := rowan.NewSender(ep, senderOptions(log, client))
		return func(int) error { return s.Append(1, make([]byte, 40), patience) }, err
	})
	t.Logf("%.1f million appends a second, the strawman %.1f", ours, straw)
	if straw >= 10 || straw < 5 || ours < 5*straw {
		t.Errorf("%.1f million appends a second, the strawman %.1f", ours, straw)
	}
}
