package rowan_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/workloads/check/teeth"
)

const (
	mtu     = 256
	sources = 4
)

// small is a log with segments that are soon full; in credited, sources need leave.
var (
	small = rowan.Options{
		Ring: 2, Segments: 16, SegmentBytes: 1024, Ahead: 6, Sources: sources, Credit: noCredit, Secret: secret,
	}
	credited = rowan.Options{
		Ring: 2, Segments: 16, SegmentBytes: 3072, Ahead: 7, Reserve: 1, Sources: sources, Credit: 2560, Secret: secret,
	}
)

// streamed is a log like o with a ring of several streams, and with as many segments more as these
// keep.
func streamed(o rowan.Options) rowan.Options {
	o.Streams = rdma.RingStreams(mtu)
	o.Segments, o.Ahead = o.Segments+3*o.Streams, o.Ahead+3*o.Streams
	return o
}

// maxStreams are those of an MTU of 256.
const maxStreams = 3

// id names an entry.
type id struct {
	source uint16
	stamp  uint64
}

// world is a run in which senders and receivers crash, and what is known of it.
type world struct {
	s        *sim.Sim
	log      rowan.Options
	entries  int
	pause    time.Duration // between two steps of receivers
	wrong    error
	ended    int
	terms    [sources]uint64
	next     [sources]int
	acked    map[[2]int]bool // by source and number
	known    map[id]bool     // that the receiver of now has digested
	last     [maxStreams]last
	places   map[id]place    // where entries end that any receiver has digested
	kept     map[[2]int]bool // those with blocks in segments that were given back: they are elsewhere, too
	gone     map[id]bool     // those of segments that are free: they must not come back
	receiver *sim.Worker
	crashes  int    // that receivers have ahead of them
	crashAt  uint64 // the verb of the next
}

func newWorld(o sim.Options, log rowan.Options, entries int) *world {
	return &world{
		s: sim.New(o), log: log, entries: entries, pause: 30 * time.Microsecond,
		acked: map[[2]int]bool{}, kept: map[[2]int]bool{}, gone: map[id]bool{}, places: map[id]place{},
	}
}

func (w *world) fail(format string, a ...any) {
	if w.wrong == nil {
		w.wrong = fmt.Errorf("at %v: %w", w.s.Now(), fmt.Errorf(format, a...))
	}
}

// dataOf is the data of an entry. That of some holds a stride that looks like an entry of another
// source, made without the secret.
func dataOf(source, number int) []byte {
	if number%3 == 1 {
		p := make([]byte, 40+3*rdma.Stride) // its header takes 24 bytes of the first stride
		inner := fill(make([]byte, 16), 0, 1<<30)
		copy(p[40:], rowan.Seal(mtu, 0, rdma.RingAt(0, 2), 1, uint16((source+1)%sources), 1<<50, inner))
		return fill(p[:8], source, number)[:len(p)]
	}
	return fill(make([]byte, lengths[(number*5+source)%len(lengths)]), source, number)
}

// place is where a block is: in which use of a segment, and where.
type place struct {
	push uint64
	at   rdma.Addr
}

// last is what the receiver of now has digested last of a stream.
type last struct {
	stamps [sources]uint64
	place  place // where it ends
}

// begin begins the life of a receiver.
func (w *world) begin() { w.known, w.last = map[id]bool{}, [maxStreams]last{} }

// digest notes an entry that the receiver of now found: those of a stream come in the order of
// their places, of a source in that of its stamps, and each has one place for ever.
func (w *world) digest(seg rowan.Segment, e *rowan.Entry) error {
	here := place{seg.Push, e.Blocks[len(e.Blocks)-1]}
	me := id{e.Source, e.Stamp}
	before, digested := w.places[me]
	p := rdma.RingPromises{MTU: mtu, Streams: w.log.Streams}
	last := &w.last[p.Stream(len(e.Data)+len(e.Blocks)*rowan.HeaderBytes)]
	switch at := last.place; {
	case here.push < at.push || here.push == at.push && here.at <= at.at:
		w.fail("entry %+v at %+v comes behind %+v", me, here, at)
	case e.Stamp <= last.stamps[e.Source]:
		w.fail("entry %+v comes behind stamp %d", me, last.stamps[e.Source])
	case digested && before != here:
		w.fail("entry %+v is at %+v, and was at %+v", me, here, before)
	}
	w.places[me], last.place, last.stamps[e.Source] = here, here, e.Stamp
	number := int(binary.LittleEndian.Uint64(e.Data))
	switch want := dataOf(int(e.Source), number); {
	case !bytes.Equal(want, e.Data):
		w.fail("entry %+v is of %d bytes that were not appended", me, len(e.Data))
	case w.known[me]:
		w.fail("entry %+v comes twice", me)
	case w.gone[me]:
		w.fail("entry %+v is back, whose segment was free", me)
	}
	w.known[me] = true
	return nil
}

// receive runs a receiver for ever. It gives segments back two at a time, late.
func (w *world) receive(ep rdma.Endpoint) {
	w.begin()
	r, err := rowan.Open(ep, w.log)
	var held []rowan.Segment
	in := map[int][]rowan.Entry{} // by segment; the last is where it was completed
	note := func(seg rowan.Segment, e *rowan.Entry) error {
		for _, i := range e.Segments {
			copied := *e
			copied.Data, copied.Segments = bytes.Clone(e.Data), slices.Clone(e.Segments)
			in[i] = append(in[i], copied)
		}
		return w.digest(seg, e)
	}
	if err == nil {
		held, err = r.Recover(note)
	}
	var freed []rowan.Segment
	for err == nil {
		err = r.Step()
		for i := 0; i < len(freed) && err == nil; i++ {
			if s := freed[i]; r.Released(s) {
				for _, e := range in[s.Index] {
					w.gone[id{e.Source, e.Stamp}] = true
				}
				delete(in, s.Index)
				freed = append(freed[:i], freed[i+1:]...)
				i--
			}
		}
		for seg, ok := r.Next(); ok && err == nil; seg, ok = r.Next() {
			err = r.Digest(seg, func(e *rowan.Entry) error { return note(seg, e) })
			held = append(held, seg)
		}
		for back := len(held) - 3; back > 0 && err == nil; back -= 2 {
			n := 0
			held = slices.DeleteFunc(held, func(s rowan.Segment) bool {
				if n == 2 || r.Begun(s) { // what ends later is needed
					return false
				}
				for _, e := range in[s.Index] {
					w.kept[[2]int{int(e.Source), int(binary.LittleEndian.Uint64(e.Data))}] = true
				}
				r.Free(s)
				freed, n = append(freed, s), n+1
				return true
			})
		}
		ep.Sleep(w.pause)
	}
	if !errors.Is(err, rdma.ErrClosed) && !errors.Is(err, rdma.ErrRevoked) {
		w.fail("receiver: %w", err)
	}
}

// startReceiver starts a receiver, and another one when it crashes.
func (w *world) startReceiver() {
	if w.ended == sources {
		return
	}
	w.receiver = w.s.GoAt(0, "receiver", w.receive)
	receiver := w.receiver
	receiver.WhenCrashed(func() { w.succeed(receiver, w.startReceiver) })
	if w.crashes > 0 {
		w.crashes--
		w.s.CrashAt(receiver, w.crashAt)
		w.crashAt = w.crashAt*5%251 + 3
	}
}

// succeed fences a worker off that has crashed, or may have, and starts another.
func (w *world) succeed(dead *sim.Worker, start func()) {
	if w.ended == sources {
		return
	}
	w.s.Go("fencer", func(rdma.Endpoint) {
		if err := w.s.Revoke(dead.Client()); err != nil {
			w.fail("fence off: %w", err)
		}
		w.power()
		start()
	})
}

// power brings the node back that lost it.
func (w *world) power() {
	if w.s.Dead(0) {
		if err := w.s.Restart(0); err != nil {
			w.fail("power is back: %w", err)
		}
	}
}

// send runs a source until it has appended all, or crashes.
func (w *world) send(source int) func(rdma.Endpoint) {
	w.terms[source]++
	return func(ep rdma.Endpoint) {
		o := senderOptions(w.log, source)
		o.Above = w.terms[source] << 32
		s, err := rowan.NewSender(ep, o)
		for errors.Is(err, rdma.ErrNodeDown) {
			s, err = rowan.NewSender(ep, o)
		}
		for err == nil && w.next[source] < w.entries {
			number := w.next[source]
			w.next[source]++
			err = s.Append(1, dataOf(source, number), 40*time.Millisecond)
			for errors.Is(err, rdma.ErrNodeDown) { // the receiver crashed; there is another
				err = s.Append(1, dataOf(source, number), 40*time.Millisecond)
			}
			w.acked[[2]int{source, number}] = err == nil
		}
		if err != nil && !errors.Is(err, rdma.ErrClosed) {
			w.fail("source %d: %w", source, err)
		}
		w.end()
	}
}

// end ends the receiver when all sources have ended.
func (w *world) end() {
	if w.ended++; w.ended == sources {
		w.s.CrashAfter(w.receiver, 0)
	}
}

// hasStreams reports whether rings have several streams in a run.
func hasStreams(seed uint64) bool { return seed%4 == 2 }

// crashes runs a world, and returns what went wrong. With losses of power the node's memory is
// persistent.
func crashes(seed uint64, cuts ...outage) error {
	log, entries := small, 60
	if seed%3 == 0 {
		log, entries = credited, 120
	}
	o := sim.Hostile(seed)
	if o.RingStreams = hasStreams(seed); o.RingStreams {
		log = streamed(log)
	}
	o.MTU, o.CountRings, o.Memory = mtu, seed%2 == 0, log.Size()
	if cuts != nil {
		o.PMem = new(pmem.Testbed())
	}
	o.DMAProb, o.DMAMax = 0.05, 1500*time.Microsecond
	if o.CountRings {
		o.DMAMax = 5 * time.Millisecond
	}
	at := time.Duration(seed*13%1000) * 10 * time.Microsecond
	o.Faults = sim.Faults{ // its blocks are held up, and others' segments are used again meanwhile
		{Kind: sim.PartitionFault, Client: "sender 3", At: at, For: 900 * time.Microsecond},
		{Kind: sim.PartitionFault, Client: "sender 2", At: at / 2, For: 400 * time.Microsecond},
	}
	w := newWorld(o, log, entries)
	defer w.s.Close()
	for _, c := range cuts {
		w.s.CutPowerAt(0, c.step, c.keep)
	}
	w.crashes, w.crashAt = int(seed%4), 3+seed*7%200
	w.startReceiver()
	if seed%8 == 0 && cuts == nil { // a receiver that lives is taken for dead
		w.s.Go("usurper", func(ep rdma.Endpoint) {
			ep.Sleep(time.Duration(20+seed*7%700) * time.Microsecond)
			w.succeed(w.receiver, w.startReceiver)
		})
	}
	for source := range sources {
		sender := w.s.Go(fmt.Sprint("sender ", source), w.send(source))
		if source < int(seed/4%3) {
			sender.WhenCrashed(func() {
				w.succeed(sender, func() { w.s.Go(fmt.Sprint("heir ", source), w.send(source)) })
			})
			w.s.CrashAt(sender, 5+seed*uint64(source+3)%50)
		}
	}
	if err := w.s.Run(); err != nil {
		return err
	}
	return w.judge()
}

// judge recovers the log when all is over, and returns what is wrong.
func (w *world) judge() error {
	w.power()
	ep, err := w.s.Open("last")
	if err != nil {
		return err
	}
	defer ep.Close()
	w.begin()
	found := map[[2]int]bool{}
	r, err := rowan.Open(ep, w.log)
	if err == nil {
		_, err = r.Recover(func(seg rowan.Segment, e *rowan.Entry) error {
			found[[2]int{int(e.Source), int(binary.LittleEndian.Uint64(e.Data))}] = true
			return w.digest(seg, e)
		})
	}
	for source := range sources {
		for number := range w.entries {
			if k := [2]int{source, number}; w.acked[k] && !w.kept[k] && !found[k] {
				w.fail("entry %d of source %d was acknowledged, and is lost", number, source)
			}
		}
	}
	return errors.Join(w.wrong, err)
}

// seeds are those of the runs: $FARKV_SEED is one.
func seeds(short, long int) (first, n uint64) {
	if one, err := strconv.ParseUint(os.Getenv("FARKV_SEED"), 10, 64); err == nil {
		return one, 1
	}
	if os.Getenv("FARKV_LONG") == "1" {
		return 0, uint64(long)
	}
	return 0, uint64(short)
}

// TestCrashes crashes senders and receivers at some of their verbs, and starts others: what was
// acknowledged is found, and nothing else than what was appended; nothing comes twice, or back.
func TestCrashes(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	first, n := seeds(120, 5000)
	for seed := first; seed < first+n; seed++ {
		if err := crashes(seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
