package measure

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// gauge is one worker that measures verbs. Its time is the endpoint's, so that it measures in
// virtual time as well.
//
// Of each node's memory the first wordBytes are for atomics, which are never mixed with WRITEs, and
// the rest for READs and WRITEs at random places.
type gauge struct {
	*Perf
	ctx   context.Context
	pool  rdma.Fabric
	nodes int
	size  uint64 // of a node's memory
	ep    rdma.Endpoint
	// held is never posted: its memory lives as long as the gauge measures, and is used again and
	// again by batches that are larger than their own: more would be allocated for each.
	held    *rdma.Batch
	buf     []byte
	spots   [spots]rdma.Addr // where READs and WRITEs go, in turn
	words   []uint64         // what each word for atomics holds, by place and node
	turn    int              // of spots and words
	call    rdma.Request
	box     rdma.Mailbox // while SENDs are measured
	appends              // while APPENDs are
	failed  error        // why one could not be added
	peer    *rpc.Peer    // while requests are
}

const (
	words     = 2 * MaxPerfBatch // of a node: verbs in flight go to different ones
	wordBytes = 8 * words
	spots     = 1 << 10 // a power of two
	align     = 64      // of READs and WRITEs: a cache line
	lowHalf   = 1<<32 - 1
	// perfPatience bounds the wait for one batch: what takes longer is gone.
	perfPatience = 10 * time.Second
	// round is how many batches there are from one look at the clock to the next where rates are
	// measured, so that its cost does not count.
	round = 16
)

// leastBuffer is what a ring's buffer takes at the least: a block of an entry.
const leastBuffer = 4096

// leastPerfMemory is what a node needs for verbs of these sizes.
func leastPerfMemory(sizes []int) uint64 {
	return wordBytes + uint64(max(largest(sizes), leastBuffer))
}

func newGauge(ctx context.Context, p *Perf, f rdma.Fabric, ep rdma.Endpoint) *gauge {
	g := &gauge{Perf: p, ctx: ctx, pool: f, nodes: f.Nodes(), size: p.Memory, ep: ep, held: ep.Batch()}
	g.buf = g.held.Alloc(max(largest(p.Batches)*largest(p.Sizes), fillBytes))
	g.words = make([]uint64, words*f.Nodes())
	return g
}

func (g *gauge) close() { g.held.Release() }

// fillBytes is how much is written at a time.
const fillBytes = 64 << 10

// fill writes what is READ later once: pages that were never written read as one page of zeros,
// from the cache.
func (g *gauge) fill() error {
	for n := range g.nodes {
		for off := uint64(wordBytes); off < g.size; off += fillBytes {
			b := g.ep.Batch()
			b.Write(rdma.At(n, off), g.buf[:min(fillBytes, g.size-off)])
			err := rdma.Do(g.ep, b, perfPatience)
			b.Release()
			if err := cmp.Or(err, g.ctx.Err()); err != nil {
				return err
			}
		}
	}
	return nil
}

// clock returns what one look at the clock takes, in nanoseconds.
func (g *gauge) clock() float64 {
	const looks = 1 << 12
	began := g.ep.Now()
	for range looks - 1 {
		g.ep.Now()
	}
	return float64(g.ep.Now()-began) / looks
}

// verb is a verb of a size. add makes the i-th one of a batch, and took checks its answer.
type verb struct {
	name  string
	bytes int // of a READ or a WRITE; 0: of none
	add   func(g *gauge, b *rdma.Batch, i int)
	took  func(g *gauge, op *rdma.Op) bool // nil: READs and WRITEs answer nothing that could be wrong
	call  func(g *gauge) error             // two-sided: add and took are nil, and there is one at a time
	post  func(g *gauge, n int) error      // n at once, in several batches: add and took are nil
	begin func(g *gauge) (end func() error, err error)
	most  int // bytes in flight; 0: unbounded
}

func (v *verb) title() string {
	if v.bytes == 0 {
		return v.name
	}
	return v.name + " of " + format.Size(uint64(v.bytes))
}

// verbs returns what there is to measure.
func (g *gauge) verbs() (all []verb) {
	for _, n := range g.Sizes {
		all = append(all, verb{name: "READ", bytes: n,
			add: func(g *gauge, b *rdma.Batch, i int) { b.ReadInto(g.spot(), g.part(b, i, n)) }})
	}
	for _, n := range g.Sizes {
		all = append(all, verb{name: "WRITE", bytes: n,
			add: func(g *gauge, b *rdma.Batch, i int) { b.Write(g.spot(), g.part(b, i, n)) }})
	}
	for _, n := range g.Sizes {
		if n <= rdma.MaxMessage {
			all = append(all, verb{name: "SEND", bytes: n, add: func(g *gauge, b *rdma.Batch, i int) {
				g.turn++
				b.Send(g.box.Addr(g.turn%g.nodes), g.part(b, i, n))
			}, took: (*gauge).received, begin: (*gauge).listen, most: mostMessages})
		}
	}
	for _, n := range g.Sizes {
		if n <= rdma.MaxMessage {
			all = append(all, verb{name: "APPEND", bytes: n,
				add: func(g *gauge, b *rdma.Batch, i int) { g.append(b, g.part(b, i, n)) }, begin: (*gauge).openRings})
		}
	}
	for _, n := range g.Sizes {
		all = append(all, verb{name: "FAA, WRITE", bytes: n,
			post: func(g *gauge, k int) error { return g.strawman(k, n) }})
	}
	return append(all,
		verb{name: "CAS", add: func(g *gauge, b *rdma.Batch, _ int) {
			a, w := g.word()
			b.CompareSwap(a, *w, *w+1)
		}, took: (*gauge).swapped},
		verb{name: "masked CAS", add: func(g *gauge, b *rdma.Batch, _ int) {
			a, w := g.word()
			b.MaskedCompareSwap(a, *w, lowHalf, *w+1, lowHalf)
		}, took: (*gauge).swapped},
		verb{name: "FAA", add: func(g *gauge, b *rdma.Batch, _ int) {
			a, _ := g.word()
			b.FetchAdd(a, 1)
		}, took: func(g *gauge, op *rdma.Op) bool {
			w := g.at(op.Addr)
			was := *w
			*w++
			return op.Result == was
		}},
		verb{name: "call", call: (*gauge).echo},
		verb{name: "request", call: (*gauge).ask, begin: (*gauge).serve},
	)
}

// mostMessages bounds the bytes of messages in flight: a node refuses what its receiver does not
// take at once.
const mostMessages = 512 << 10

// listen opens the mailbox that SENDs go to: the worker's own.
func (g *gauge) listen() (end func() error, err error) {
	o := rdma.BoxOptions{Node: rdma.All, Slots: max(largest(g.Batches), 1),
		Bytes: min(largest(g.Sizes), rdma.MaxMessage)}
	g.box, err = rdma.Listen(g.ep, o)
	if err != nil {
		return nil, err
	}
	return g.box.Close, nil
}

// received takes the message of a SEND.
func (g *gauge) received(op *rdma.Op) bool {
	for {
		if m := g.box.Next(); m != nil {
			whole := len(m.Data) == len(op.Buf)
			g.box.Release(m)
			return whole
		}
		if g.box.Await(perfPatience) != nil {
			return false
		}
	}
}

// serve opens the peer that asks itself.
func (g *gauge) serve() (end func() error, err error) {
	if g.peer, err = rpc.Open(g.ep, rpc.Options{}); err != nil {
		return nil, err
	}
	return g.peer.Close, nil
}

// ask is a request over messages, as long as a call, that the worker answers itself.
func (g *gauge) ask() error {
	g.turn++
	var body [len(g.call.Arg) * 8]byte
	body[0] = byte(g.turn)
	c, err := g.peer.Start(g.peer.Box().Addr(g.turn%g.nodes), 1, perfPatience, body[:])
	if err != nil {
		return err
	}
	defer c.Release()
	for !c.Over() {
		r, err := g.peer.Next(perfPatience)
		if err == nil && r != nil {
			err = r.Answer(0, r.Body)
		}
		if err != nil {
			return err
		}
	}
	if c.Err == nil && !bytes.Equal(c.Body, body[:]) {
		return fmt.Errorf("%x is answered with %x: %w", body, c.Body, errAnswer)
	}
	return c.Err
}

// echo is a two-sided call.
func (g *gauge) echo() error {
	g.turn++
	g.call = rdma.Request{Proc: node.ProcEcho, Arg: [6]uint64{uint64(g.turn)}}
	if err := g.ep.Call(g.turn%g.nodes, &g.call, perfPatience); err != nil {
		return err
	}
	if g.call.Ret != g.call.Arg {
		return fmt.Errorf("%d is echoed as %d: %w", g.call.Arg[0], g.call.Ret[0], errAnswer)
	}
	return nil
}

// part returns the memory of the i-th verb of a batch.
func (g *gauge) part(b *rdma.Batch, i, n int) []byte {
	if at := i * n; at+n > rdma.BatchMemory {
		return g.buf[at : at+n : at+n]
	}
	return b.Alloc(n)
}

// spot returns the next place of a READ or a WRITE.
func (g *gauge) spot() rdma.Addr {
	g.turn++
	return g.spots[g.turn%spots]
}

// aim draws the places of READs and WRITEs of a size.
func (g *gauge) aim(n int) {
	places := (g.size-wordBytes-uint64(n))/align + 1
	for i := range g.spots {
		g.spots[i] = rdma.At(i%g.nodes, wordBytes+g.ep.Rand().Uint64N(places)*align)
	}
}

// word returns the next word for atomics, and what it holds.
func (g *gauge) word() (rdma.Addr, *uint64) {
	g.turn++
	a := rdma.At(g.turn%g.nodes, uint64(g.turn/g.nodes%words)*8)
	return a, g.at(a)
}

func (g *gauge) at(a rdma.Addr) *uint64 { return &g.words[a.Node()*words+int(a.Offset()/8)] }

// swapped notes a CAS. It takes effect: nothing else changes the word.
func (g *gauge) swapped(op *rdma.Op) bool {
	*g.at(op.Addr) = op.Value
	return op.Swapped() && op.Result == op.Expect
}

// errAnswer ends a measurement in which a verb's answer was wrong.
var errAnswer = errors.New("wrong answer")

// post does n verbs at once and waits for them.
func (g *gauge) post(v *verb, n int) error {
	if v.call != nil {
		return v.call(g)
	}
	if v.post != nil {
		return v.post(g, n)
	}
	b := g.ep.Batch()
	defer b.Release()
	for i := range n {
		v.add(g, b, i)
	}
	if g.failed != nil {
		return g.failed
	}
	if err := rdma.Do(g.ep, b, perfPatience); err != nil || v.took == nil {
		return err
	}
	for i := range n {
		if op := b.Op(i); !v.took(g, op) {
			return fmt.Errorf("%s at %s found %d: %w", op.Verb, op.Addr, op.Result, errAnswer)
		}
	}
	return nil
}

// verb measures one verb: alone, and in batches.
func (g *gauge) verb(v *verb) (_ *VerbPerf, err error) {
	m := &VerbPerf{Verb: v.name, Bytes: v.bytes}
	if v.bytes > 0 {
		g.aim(v.bytes)
	}
	if v.begin != nil {
		var end func() error
		if end, err = v.begin(g); err == nil {
			defer func() { err = cmp.Or(err, end()) }()
		}
	}
	if err == nil {
		err = g.post(v, 1)
	}
	if errors.Is(err, rdma.ErrNotSupported) {
		m.Missing = err.Error()
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err = g.run(v, 1, g.Time/10, g.Ops/10, nil); err != nil { // caches, predictors and buffers are warm behind it
		return nil, err
	}
	var h workloads.Histogram
	alone, err := g.run(v, 1, g.Time, g.Ops, &h)
	if err != nil {
		return nil, err
	}
	m.Latency, m.Cost = runner.Summarize(&h), alone.Cost
	for _, n := range g.Batches {
		if v.call != nil && n > 1 || v.most > 0 && n*v.bytes > v.most {
			continue
		}
		r, err := g.run(v, n, g.Time, g.Ops, nil)
		if err != nil {
			return nil, fmt.Errorf("%d in flight: %w", n, err)
		}
		m.Rates = append(m.Rates, r)
	}
	return m, nil
}

// run does batches of n, one after the other, for some time or until there were so many verbs; at
// least one. With a histogram it looks at the clock behind each, and records what it took.
func (g *gauge) run(v *verb, n int, limit time.Duration, ops int, h *workloads.Histogram) (Rate, error) {
	count := g.device()
	before, began := *g.ep.Counters(), g.ep.Now()
	last, done := began, 0
	for i := 1; ; i++ {
		if err := g.post(v, n); err != nil {
			return Rate{}, err
		}
		done += n
		if h == nil && i%round != 0 && done < ops {
			continue
		}
		now := g.ep.Now()
		if h != nil {
			h.Record(now - last)
		}
		if last = now; done >= ops || now-began >= limit {
			break
		}
		if i%round == 0 && g.ctx.Err() != nil {
			return Rate{}, g.ctx.Err()
		}
	}
	r := newRate(n, v.bytes, done, last-began, g.ep.Counters().Sub(before))
	count(&r)
	return r, nil
}

// device begins to count what the device does, where there is one. Count adds that to a rate.
func (g *gauge) device() (count func(r *Rate)) {
	sent, counts := fabrics.PacketsOf(g.pool)
	calls, ok := fabrics.LibraryCalls(g.pool, g.ep)
	return func(r *Rate) {
		n := float64(r.Operations)
		if ok {
			now, _ := fabrics.LibraryCalls(g.pool, g.ep)
			r.Cost.Library = float64(now-calls) / n
		}
		if counts {
			now, _ := fabrics.PacketsOf(g.pool)
			r.Cost.PacketsOut, r.Cost.PacketsIn = float64(now.Sent-sent.Sent)/n, float64(now.Received-sent.Received)/n
		}
	}
}
