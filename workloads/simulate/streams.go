package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/workloads"
)

// Ways in which senders write to the persistent memory of a node, each time with a READ behind it
// that sees it there.
const (
	Exclusive = "exclusive" // WRITE, each sender to a log of its own
	Append    = "append"    // Rowan: all append to one log
	Strawman  = "strawman"  // all to one log: FETCH AND ADD of its end, then WRITE
)

// Streams describes small writes to one node's persistent memory, by senders on other machines and
// by threads of its own (Rowan 2.4, 6.2). Each has one write in flight.
type Streams struct {
	Way      string
	Profile  string   // of the hardware, with persistent memory
	Hardware []string // as Config's; PMem.ReadBandwidth=1e12 changes a figure of the modules
	Machines int      // of the senders; 0: the profile's
	Senders  int
	Bytes    int // of a write, headers among them
	// Local threads write LocalBytes at a time past their caches, each to a log of its own.
	Local, LocalBytes int
	// Duration is measured, behind a WarmUp; both in virtual time.
	Duration, WarmUp time.Duration
	Seed             uint64
}

// Written is what came of Streams.
type Written struct {
	Writes float64 // of senders, a second
	Local  float64 // bytes of threads, a second
	// Requests and Media are bytes a second: those that the modules were asked to write, and that
	// their media wrote.
	Requests, Media, DLWA float64
	// Busy is for which share of the time the media of the busiest module worked, and NIC the
	// node's NIC.
	Busy, NIC float64
}

const (
	logBytes    = 4 << 20 // of a log, or a segment of Rowan's. Behind its end a log begins anew.
	mostStreams = 1 << 12
	lookEvery   = 100 * time.Microsecond // Rowan's control thread: the fastest senders take a millisecond for a segment
	writeWithin = time.Second            // a write takes microseconds
	leastBytes  = 64                     // an entry of Rowan's has a header
	mostBytes   = 32 << 10
)

// streams is a run of Streams.
type streams struct {
	Streams
	pool    *sim.Sim
	modules *pmem.DeviceConfig
	log     rowan.Options
	stop    atomic.Bool
	failed  error
	sending int // senders that have not ended
	writes  uint64
	local   uint64 // bytes
}

// Run writes. An error is a workloads.UsageError when w makes no sense, or a sender's. When ctx is
// cancelled it returns ctx's error.
func (w Streams) Run(ctx context.Context) (*Written, error) {
	profile, err := sim.LookupProfile(w.Profile)
	if err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	switch {
	case profile.PMem.DIMMs == 0:
		return nil, workloads.Usagef("nodes of %s have no persistent memory", w.Profile)
	case w.Way != Exclusive && w.Way != Append && w.Way != Strawman:
		return nil, workloads.Usagef("write by %q: want %s, %s or %s", w.Way, Exclusive, Append, Strawman)
	case w.Senders < 0 || w.Local < 0 || w.Senders+w.Local < 1 || w.Senders+w.Local > mostStreams:
		return nil, workloads.Usagef("%d senders and %d threads: want 1 to %d in all", w.Senders, w.Local, mostStreams)
	case w.Senders > 0 && (w.Bytes < leastBytes || w.Bytes > mostBytes):
		return nil, workloads.Usagef("writes of %d bytes: want %d to %d", w.Bytes, leastBytes, mostBytes)
	case w.Local > 0 && (w.LocalBytes < 1 || w.LocalBytes > mostBytes):
		return nil, workloads.Usagef("threads' writes of %d bytes: want 1 to %d", w.LocalBytes, mostBytes)
	case w.Duration <= 0 || w.WarmUp < 0:
		return nil, workloads.Usagef("%v behind %v: want a time to measure", w.Duration, w.WarmUp)
	}
	r := &streams{Streams: w}
	o := profile.Options(w.Seed, 1)
	if w.Machines > 0 {
		o.Hardware.ComputeNodes = w.Machines
	}
	o.PMem = &profile.PMem
	o.Device = []sim.Range{{Node: 0, Offset: 0, Bytes: 8}} // the strawman's word
	if err := change(&o, w.Hardware); err != nil {
		return nil, err
	}
	if err := o.PMem.Check(); err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	if round := o.PMem.Interleave * uint64(o.PMem.DIMMs); round > logBytes/2 {
		return nil, workloads.Usagef("a log of %d bytes is less than twice %d of the modules", logBytes, round)
	}
	// Room for what a link carries in the time, and for what senders have leave for.
	most := o.Hardware.LinkGbps / 8 * float64(w.WarmUp+w.Duration)
	r.log = rowan.Options{
		Base: logBytes * uint64(w.Local+1), Ring: 1, Sources: max(w.Senders, 1), SegmentBytes: logBytes,
		Segments: int(most/logBytes) + w.Senders/16 + 8,
	}
	o.Memory = r.log.Base + max(r.log.Size(), logBytes*uint64(w.Senders))
	r.modules, r.pool = o.PMem, sim.New(o)
	defer r.pool.Close()
	defer context.AfterFunc(ctx, func() { r.stop.Store(true) })()
	written, err := r.measure()
	if err = errors.Join(ctx.Err(), err); err != nil {
		return nil, err
	}
	return written, nil
}

// measure runs the writers, and returns what they did after the warm-up.
func (r *streams) measure() (*Written, error) {
	var before, after counted
	r.pool.GoAt(0, "control", func(ep rdma.Endpoint) {
		defer r.stop.Store(true)
		r.sending = r.Senders
		if r.Way == Append {
			r.pool.GoAt(0, "receiver", r.receive)
		}
		for i := range r.Local {
			r.pool.GoAt(0, fmt.Sprint("thread ", i), func(ep rdma.Endpoint) { r.write(ep, i) })
		}
		for i := range r.Senders {
			r.pool.Go(fmt.Sprint("sender ", i), func(ep rdma.Endpoint) { r.send(ep, i) })
		}
		ep.Sleep(r.WarmUp)
		before = r.count()
		for end := ep.Now() + r.Duration; ep.Now() < end && !r.stop.Load(); {
			ep.Sleep(min(end-ep.Now(), lookEvery))
		}
		after = r.count()
	})
	if err := errors.Join(r.pool.Run(), r.failed); err != nil {
		return nil, err
	}
	return after.since(&before), nil
}

// receive pushes segments for Rowan's senders, and is the control thread of its log. The ring ends
// with it, and what is in flight fails: so it outlasts the senders.
func (r *streams) receive(ep rdma.Endpoint) {
	receiver, err := rowan.Open(ep, r.log)
	for err == nil && r.sending > 0 {
		err = receiver.Step()
		ep.Sleep(lookEvery)
	}
	r.fail("receive", err)
}

func (r *streams) fail(what string, err error) {
	if err != nil && !errors.Is(err, rdma.ErrClosed) {
		r.failed = errors.Join(r.failed, fmt.Errorf("%s: %w", what, err))
		r.stop.Store(true)
	}
}

// place is where a stream's next bytes go: to a log of its own. Streams are spread evenly over the
// modules, since those that have gone on for a while are at different places.
type place struct{ base, next, size uint64 }

// place returns where the i-th stream of n begins, with a log at base.
func (r *streams) place(random *rand.Rand, base uint64, i, n int, size uint64) place {
	round := r.modules.Interleave * uint64(r.modules.DIMMs)
	at := round*random.Uint64N(logBytes/round-1) + round*uint64(i)/uint64(n)
	return place{base, at / size, size}
}

func (p *place) take() rdma.Addr {
	at := p.base + p.next*p.size
	p.next = (p.next + 1) % (logBytes / p.size)
	return rdma.At(0, at)
}

// write is a thread of the node.
func (r *streams) write(ep rdma.Endpoint, i int) {
	to, p := r.place(ep.Rand(), logBytes*uint64(i+1), i, r.Local, uint64(r.LocalBytes)), make([]byte, r.LocalBytes)
	for !r.stop.Load() {
		r.pool.NTStore(to.take(), p)
		r.local += uint64(len(p))
	}
}

// send is a sender.
func (r *streams) send(ep rdma.Endpoint, i int) {
	defer func() { r.sending-- }()
	one, err := r.sender(ep, i)
	for err == nil && !r.stop.Load() {
		err = one()
		r.writes++
	}
	r.fail(fmt.Sprint("sender ", i), err)
}

// sender returns what writes once.
func (r *streams) sender(ep rdma.Endpoint, i int) (one func() error, err error) {
	switch p := make([]byte, r.Bytes); r.Way {
	case Append:
		s, err := rowan.NewSender(ep, rowan.SenderOptions{Log: r.log, Source: uint16(i)})
		return func() error { return s.Append(1, p[rowan.HeaderBytes:], writeWithin) }, err
	case Strawman:
		m := rowan.Strawman{Tail: rdma.At(0, 0), Log: rdma.At(0, r.log.Base), Size: r.pool.Size() - r.log.Base}
		return func() error { _, err := m.Append(ep, p, writeWithin); return err }, nil
	default:
		to := r.place(ep.Rand(), r.log.Base+logBytes*uint64(i), i, r.Senders, uint64(r.Bytes))
		return func() error {
			b := ep.Batch()
			defer b.Release()
			b.Chain()
			at := to.take()
			b.WriteCopy(at, p)
			b.Read(at, 8)
			return rdma.Do(ep, b.As("write"), writeWithin)
		}, nil
	}
}

// counted is what was counted until a moment.
type counted struct {
	at            time.Duration
	writes, local uint64
	modules       []pmem.DIMM
	busy, nic     time.Duration
}

func (r *streams) count() counted {
	d := r.pool.PMem(0)
	return counted{r.pool.Now(), r.writes, r.local, d.Counters(), d.Busy(), r.pool.Usage()[0].NIC}
}

func (c *counted) since(b *counted) *Written {
	took := c.at - b.at
	per := func(n uint64) float64 { return float64(n) / took.Seconds() }
	w := &Written{
		Writes: per(c.writes - b.writes), Local: per(c.local - b.local),
		Busy: float64(c.busy-b.busy) / float64(took), NIC: float64(c.nic-b.nic) / float64(took),
	}
	for _, m := range pmem.Rates(b.modules, c.modules, took) {
		w.Requests, w.Media = w.Requests+m.RequestWrote, w.Media+m.MediaWritten
	}
	if w.Requests > 0 {
		w.DLWA = w.Media / w.Requests
	}
	return w
}
