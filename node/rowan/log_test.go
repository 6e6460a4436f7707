package rowan_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// shared is a table with segments that a receiver and two logs take from each other, again and
// again.
var shared = rowan.Options{
	Ring: 2, Segments: 12, SegmentBytes: 3 * mtu, Ahead: 5, Own: 5, Sources: 1, Credit: noCredit, Secret: secret,
}

const (
	logs       = 2
	logEntries = 24 // of each
)

// fate is what is known of an entry of a log.
type fate uint8

const (
	unknown fate = iota // it may be there
	acked               // it must be there
	leaving             // its segment is being freed: it may be there
	gone                // it must not
)

// logWorld is a node with a receiver and logs of its own, which crash together, and what is known
// of them.
type logWorld struct {
	s      *sim.Sim
	wrong  error
	next   [logs]int
	ended  int // logs that have appended all
	fates  map[int]fate
	places map[int]logPlace
	pushes uint64
	reused bool // a segment was used again

	resumes bool // logs go on in the segments that they had before the crash
	resumed map[rowan.Owner]resumed
}

// resumed is where a log goes on.
type resumed struct {
	rowan.Segment
	behind rdma.Addr
}

type logPlace struct {
	segment rowan.Segment
	at      rdma.Addr
}

func (w *logWorld) fail(format string, a ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf("at %v: %w", w.s.Now(), fmt.Errorf(format, a...))
	}
}

// logData is the data of an entry.
func logData(number int) []byte {
	p := dataOf(number%sources, number)
	return p[:min(len(p), 600)]
}

// open opens the table, checks what is in it, and frees it.
func (w *logWorld) open(ep rdma.Endpoint) (*rowan.Table, error) {
	t, err := rowan.OpenTable(ep, shared)
	if err != nil {
		return nil, err
	}
	if t.Pushes() < w.pushes {
		w.fail("the last push is %d, and was %d", t.Pushes(), w.pushes)
	}
	w.pushes = t.Pushes()
	found := map[int]bool{}
	clear(w.resumed)
	scratch := make([]byte, shared.SegmentBytes)
	for _, seg := range t.Left() {
		if owner := t.Owner(seg); owner < 1 || owner > logs {
			w.fail("segment %+v is of log %d", seg, owner)
		}
		err = errors.Join(err, t.Scan(ep, seg, scratch, func(e *rowan.Entry) error {
			number := int(binary.LittleEndian.Uint64(e.Data))
			at := logPlace{seg, e.Blocks[0]}
			if !bytes.Equal(e.Data, logData(number)) || e.Stamp>>32 != uint64(number) || w.places[number] != at {
				w.fail("entry %d at %+v %v is not what was appended", number, seg, e.Blocks)
			}
			found[number] = true
			behind := e.Blocks[0].Add(uint64((rowan.Size(len(e.Data)) + 63) / 64 * 64))
			if owner := t.Owner(seg); !t.IsCommitted(seg) && w.resumes {
				w.resumed[owner] = resumed{seg, behind}
			}
			return nil
		}))
	}
	for number := range logs * logEntries {
		switch f := w.fates[number]; {
		case f == acked && !found[number]:
			w.fail("entry %d was acknowledged, and is lost", number)
		case f == gone && found[number]:
			w.fail("entry %d is back, whose segment was free", number)
		}
	}
	for _, seg := range t.Left() {
		if w.resumed[t.Owner(seg)].Segment != seg {
			w.free(ep, t, seg, &err)
		}
	}
	w.resumes = !w.resumes
	return t, err
}

// free frees a segment of an own log.
func (w *logWorld) free(ep rdma.Endpoint, t *rowan.Table, seg rowan.Segment, err *error) {
	to := func(f fate) {
		for number, p := range w.places {
			if p.segment == seg {
				w.fates[number] = f
			}
		}
	}
	to(leaving)
	if *err == nil {
		*err = t.Release(ep, []rowan.Segment{seg})
	}
	if *err == nil {
		to(gone)
	}
}

// life is that of the node's workers, until all is appended, or they crash.
func (w *logWorld) life(ep rdma.Endpoint) {
	t, err := w.open(ep)
	var r *rowan.Receiver
	if err == nil {
		r, err = t.Receiver(ep)
	}
	if err == nil {
		var left []rowan.Segment
		left, err = r.Recover(func(rowan.Segment, *rowan.Entry) error { return nil })
		for _, seg := range left {
			r.Free(seg)
		}
	}
	w.ended = 0
	for k := 0; k < logs && err == nil; k++ {
		err = ep.Go("log", func(ep rdma.Endpoint) { w.append(ep, t, k) })
	}
	for err == nil && w.wrong == nil && w.ended < logs {
		ep.Sleep(50 * time.Microsecond)
		err = r.Step()
		for seg, ok := r.Next(); ok && err == nil; seg, ok = r.Next() {
			err = r.Digest(seg, func(*rowan.Entry) error { return nil })
			r.Free(seg)
		}
	}
	w.note("receiver", err)
}

// note notes an error that no crash explains.
func (w *logWorld) note(side string, err error) {
	if err != nil && !errors.Is(err, rdma.ErrClosed) && !errors.Is(err, rdma.ErrNodeDown) &&
		!errors.Is(err, rdma.ErrRevoked) {
		w.fail("%s: %w", side, err)
	}
}

// append appends to a log, up to three entries in a batch, and frees its segments late.
func (w *logWorld) append(ep rdma.Endpoint, t *rowan.Table, k int) {
	log := t.Log(ep, rowan.Owner(1+k))
	if r, ok := w.resumed[rowan.Owner(1+k)]; ok {
		log = t.Resume(ep, r.Segment, r.behind)
	}
	var err error
	var full []rowan.Segment
	for err == nil && w.next[k] < logEntries {
		b := ep.Batch()
		var numbers []int
		for n := 1 + w.next[k]%3; len(numbers) < n && w.next[k] < logEntries; w.next[k]++ {
			number := logs*w.next[k] + k
			for err = log.Reserve(len(logData(number)), 0); errors.Is(err, rdma.ErrFull) && w.wrong == nil; {
				ep.Sleep(20 * time.Microsecond)
				err = log.Reserve(len(logData(number)), 0)
			}
			if err != nil {
				break
			}
			seg, at := log.Add(b, 1, uint32(number), logData(number))
			w.reused = w.reused || seg.Push > uint64(shared.Segments)
			w.places[number] = logPlace{seg, at}
			w.pushes = max(w.pushes, seg.Push)
			numbers = append(numbers, number)
		}
		if err == nil {
			err = rdma.Do(ep, b, patience)
		}
		for _, number := range numbers {
			if err == nil {
				w.fates[number] = acked
			}
		}
		b.Release()
		for seg, ok := log.Full(); ok; seg, ok = log.Full() {
			full = append(full, seg)
		}
		for ; len(full) > 1 && err == nil; full = full[1:] {
			if err = t.Commit(ep, full[:1]); err == nil {
				w.free(ep, t, full[0], &err)
			}
		}
	}
	if err == nil {
		w.ended++
	}
	w.note("log", err)
}

// ownLogs runs a world in which the power is cut, or the node's workers crash at a verb. It returns
// how many steps the node made, and how many verbs its workers.
func ownLogs(seed uint64, crashAt uint64, cuts ...outage) (steps uint64, err error) {
	o, device := sim.Hostile(seed), pmem.Testbed()
	o.MTU, o.CountRings, o.Memory, o.PMem, o.MaxEvents = mtu, seed%2 == 0, shared.Size(), &device, 1e6
	w := &logWorld{
		s: sim.New(o), fates: map[int]fate{}, places: map[int]logPlace{}, resumed: map[rowan.Owner]resumed{},
	}
	defer w.s.Close()
	for _, c := range cuts {
		w.s.CutPowerAt(0, c.step, c.keep)
	}
	var start func()
	over := false
	start = func() {
		worker := w.s.GoAt(0, "receiver", w.life)
		if crashAt > 0 {
			w.s.CrashAt(worker, crashAt)
			crashAt = 0
		}
		worker.WhenCrashed(func() {
			w.s.Go("fencer", func(rdma.Endpoint) {
				for _, c := range w.s.Clients() {
					if c.Name != "fencer" {
						w.note("fence off", w.s.RevokeLife(c))
					}
				}
				if w.s.Dead(0) {
					w.note("power is back", w.s.Restart(0))
				}
				if !over {
					start()
				}
			})
		})
	}
	start()
	if err := w.s.Run(); err != nil {
		return 0, err
	}
	over = true
	steps = w.s.Steps(0)
	if w.s.Dead(0) {
		w.note("power is back", w.s.Restart(0))
	}
	ep, err := w.s.Open("last")
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	_, err = w.open(ep)
	if err = errors.Join(w.wrong, err); err != nil {
		return 0, fmt.Errorf("seed %d, crash at %d, power cut %v: %w", seed, crashAt, cuts, err)
	}
	if !w.reused {
		return 0, fmt.Errorf("seed %d: no segment is used again", seed)
	}
	return steps, nil
}

// TestOwnLogs crashes a node's workers at each verb of one, and cuts the power behind each step of
// the node: of the entries of its own logs those that were acknowledged are there, in their places,
// and none of a segment that was freed.
func TestOwnLogs(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	first, n := seeds(2, 20)
	for seed := first; seed < first+n; seed++ {
		run := func(crashAt uint64, cuts ...outage) uint64 {
			steps, err := ownLogs(seed, crashAt, cuts...)
			if err != nil {
				t.Fatal(err)
			}
			return steps
		}
		steps := run(0)
		for crash := uint64(1); crash < 100; crash++ {
			run(crash)
		}
		for step := uint64(1); step <= steps; step++ {
			run(0, outage{step, sim.NoneSurvive})
			run(0, outage{step, sim.AnySurvive(step)})
			run(0, outage{step, sim.OneSurvives(int(step) % 5)})
		}
		for step := 5 + seed%7; step <= steps; step += steps / 4 {
			for again := step + 1; again < step+40; again++ {
				run(0, outage{step, sim.AnySurvive(step)}, outage{again, sim.AnySurvive(again)})
			}
		}
	}
}

// TestShared: the receiver leaves so many segments to own logs as it is told, and these keep some
// free for others; what one gives back another takes.
func TestShared(t *testing.T) {
	f := newMem(t, shared, mtu)
	ep := open(t, f, "worker")
	o := shared
	o.Ahead = o.Segments
	table, err := rowan.OpenTable(ep, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := table.Receiver(ep)
	if err == nil {
		err = r.Step()
	}
	if err != nil || table.Free() != o.Own {
		t.Errorf("behind the receiver %d segments are free, %v, want %d", table.Free(), err, o.Own)
	}
	log := table.Log(ep, 1)
	fillLog := func(keep int) (full []rowan.Segment) {
		for {
			if err := log.Reserve(500, keep); errors.Is(err, rdma.ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			b := ep.Batch()
			log.Add(b, 1, 1, make([]byte, 500))
			if err := rdma.Do(ep, b, patience); err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		for seg, ok := log.Full(); ok; seg, ok = log.Full() {
			full = append(full, seg)
		}
		return full
	}
	full := fillLog(2)
	if len(full) != o.Own-3 || table.Free() != 2 {
		t.Errorf("%d segments are full, and %d free, with 2 kept", len(full), table.Free())
	}
	if err := table.Release(ep, full); err != nil {
		t.Fatal(err)
	}
	if full = fillLog(0); len(full) != o.Own-1 || table.Free() != 0 {
		t.Errorf("%d segments are full, and %d free, with none kept", len(full), table.Free())
	}
	if err := log.Reserve(shared.SegmentBytes, 0); !errors.Is(err, rdma.ErrMessageSize) {
		t.Errorf("an entry of more than a segment: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
