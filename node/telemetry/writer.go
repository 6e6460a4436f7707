package telemetry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// StaleAfter is for how long a process must not have told anything before its place is another's to
// take, and before readers leave it out. Processes publish about once a second.
const StaleAfter = 10 * time.Second

// Copies is on how many nodes a record, or an event, is written, where there are as many.
const Copies = 2

// retryAfter is for how long a node that failed a writer is not tried again.
const retryAfter = 5 * time.Second

// The steps of writers and readers.
const (
	StepClaim   rdma.Step = "claim telemetry"
	StepPublish rdma.Step = "publish telemetry"
	StepRelease rdma.Step = "release telemetry"
	StepLook    rdma.Step = "look at telemetry"
)

// A Writer is a process's record in a region. It claims a place on each of the first two nodes that
// serve, when it publishes first, and others when one of these nodes is gone or fails. It is not
// safe for concurrent use.
//
// A place is claimed by CAS of its claim word from 0, or from the life of a process that has told
// nothing for StaleAfter while this one looked, to the own life. That guess may be wrong, such as
// of a process that was stopped: then its place is another's, which costs it nothing but the
// record. It finds its claim gone behind the next publication and takes another place. What it
// wrote meanwhile is one half at most, with a life that is not the claim's: readers take the other
// half, until the next publication.
type Writer struct {
	r     *Region
	life  uint64
	seq   uint64
	beat  uint64 // nanoseconds of the wall clock that were written last
	homes []home
	// failed has the nodes that failed, and when; watched the places of each node; half, by node,
	// which half is written next: the one that was not acknowledged last.
	failed  map[int]time.Duration
	watched map[int][]beating
	half    map[int]uint64
}

// home is a place of the writer on a node.
type home struct{ node, place int }

// beating is what a place held, and since when.
type beating struct {
	claim, beat uint64
	since       time.Duration
}

// NewWriter returns a writer for a process of the given life, which tells it from all others; see
// Process.
func NewWriter(r *Region, life uint64) *Writer {
	return &Writer{
		r: r, life: max(life, 1), failed: map[int]time.Duration{}, watched: map[int][]beating{}, half: map[int]uint64{},
	}
}

// ErrNowhere is wrapped when no node took what was published.
var ErrNowhere = errors.New("no node takes telemetry")

// Publish writes p; p.At must be the wall clock's time now, and p.Life is the writer's. It joins
// the view, so that the endpoint must be its own. An error wraps ErrNowhere, or is why the view
// cannot be joined; the next call begins anew.
func (w *Writer) Publish(ep rdma.Endpoint, p *Process) error {
	v, err := ep.Join()
	if err != nil {
		return fmt.Errorf("publish telemetry: %w", err)
	}
	serving := w.r.serving(&v)
	w.homes = slices.DeleteFunc(w.homes, func(h home) bool { return !slices.Contains(serving, h.node) })
	w.seq++
	w.beat = max(w.beat+1, uint64(p.At.UnixNano()))
	text := appendHalf(nil, w.seq, w.life, p)
	for range 2 { // again with new places, where those from before are gone
		w.settle(ep, serving)
		if w.write(ep, text) {
			break
		}
	}
	if len(w.homes) == 0 {
		return fmt.Errorf("publish telemetry: %w", ErrNowhere)
	}
	return nil
}

// settle claims places on nodes until there are enough, and records in place of mere places.
func (w *Writer) settle(ep rdma.Endpoint, serving []int) {
	for i := range w.homes {
		if h := &w.homes[i]; h.place >= w.r.records {
			w.promote(ep, h)
		}
	}
	failing := func(n int) bool {
		since, failed := w.failed[n]
		return failed && ep.Now()-since < retryAfter
	}
	for _, n := range serving {
		if !failing(n) {
			w.moveTo(ep, n)
		}
	}
	for _, n := range serving {
		if len(w.homes) == 0 {
			w.moveTo(ep, n)
		}
	}
}

// moveTo claims a place on a node, unless the writer has enough, or one there.
func (w *Writer) moveTo(ep rdma.Endpoint, n int) {
	if len(w.homes) == Copies || slices.ContainsFunc(w.homes, func(h home) bool { return h.node == n }) {
		return
	}
	if place := w.claim(ep, n, places); place >= 0 {
		w.homes = append(w.homes, home{n, place})
	}
}

// promote moves the writer from a place without a record to one with.
func (w *Writer) promote(ep rdma.Endpoint, h *home) {
	if place := w.claim(ep, h.node, w.r.records); place >= 0 {
		w.release(ep, *h)
		h.place = place
	}
}

// claim takes one of the first places of a node, or finds the one that the writer has; -1: there is
// none to be had now.
func (w *Writer) claim(ep rdma.Endpoint, node, most int) int {
	taken := -1
	w.on(ep, StepClaim, node, func(b *rdma.Batch) { b.Read(w.r.place(node, 0), most*placeBytes) }, func(b *rdma.Batch) {
		table := b.Op(0).Buf
		w.watch(ep.Now(), node, table)
		for _, i := range w.candidates(ep.Now(), node, most) {
			if w.watched[node][i].claim == w.life || w.take(ep, node, i) {
				taken = i
				return
			}
		}
	})
	return taken
}

// watch notes which places of a node changed.
func (w *Writer) watch(now time.Duration, node int, table []byte) {
	if w.watched[node] == nil {
		w.watched[node] = make([]beating, places)
	}
	for i := range len(table) / placeBytes {
		is, was := placeAt(table, i), &w.watched[node][i]
		if is.claim != was.claim || is.beat != was.beat || was.since == 0 {
			*was = beating{is.claim, is.beat, max(now, 1)}
		}
	}
}

func placeAt(table []byte, i int) beating {
	p := table[i*placeBytes:]
	return beating{claim: binary.LittleEndian.Uint64(p), beat: binary.LittleEndian.Uint64(p[8:])}
}

// mostTries bounds the places that a claim tries: others may take each of them first.
const mostTries = 16

// candidates returns the places to try, the best first: the writer's own, free ones, those of lives
// that are gone. Those with a record come first, since they have the lower numbers; writers begin
// at different ones.
func (w *Writer) candidates(now time.Duration, node, most int) (all []int) {
	all0 := w.watched[node][:most]
	for i, p := range all0 {
		if p.claim == w.life {
			return []int{i}
		}
	}
	add := func(from, n int, fits func(p *beating) bool) {
		for k := range n {
			i := from + int((w.life+uint64(k))%uint64(n))
			if len(all) < mostTries && fits(&all0[i]) {
				all = append(all, i)
			}
		}
	}
	free := func(p *beating) bool { return p.claim == 0 }
	gone := func(p *beating) bool { return p.claim != 0 && now-p.since > StaleAfter }
	add(0, w.r.records, free)
	add(0, w.r.records, gone)
	if most > w.r.records {
		add(w.r.records, most-w.r.records, free)
		add(w.r.records, most-w.r.records, gone)
	}
	return all
}

// take claims a place if it is as the writer saw it.
func (w *Writer) take(ep rdma.Endpoint, node, i int) (ok bool) {
	was := w.watched[node][i].claim
	w.on(ep, StepClaim, node, func(b *rdma.Batch) { b.CompareSwap(w.r.place(node, i), was, w.life) },
		func(b *rdma.Batch) { ok = b.Op(0).Swapped() })
	return ok
}

// write writes a half, and the beat, to each home, and gives up those that fail or that are
// another's by now; false: none is left.
func (w *Writer) write(ep rdma.Endpoint, text []byte) bool {
	lost := func(n int) {
		w.homes = slices.DeleteFunc(w.homes, func(h home) bool { return h.node == n })
	}
	var nodes []int
	for _, h := range w.homes {
		nodes = append(nodes, h.node)
	}
	onEach(ep, attend, StepPublish, nodes, func(b *rdma.Batch, n int) {
		h := w.homes[slices.IndexFunc(w.homes, func(h home) bool { return h.node == n })]
		if h.place < w.r.records {
			b.WriteCopy(w.r.record(n, h.place).Add(w.half[n]*halfBytes), text)
		}
		b.WriteWord(w.r.place(n, h.place).Add(8), w.beat)
		b.Read(w.r.place(n, h.place), 8)
	}, func(b *rdma.Batch, n int) {
		w.half[n] ^= 1
		if claim := b.Op(b.Len() - 1); binary.LittleEndian.Uint64(claim.Buf) != w.life {
			lost(n)
		}
	}, func(n int, _ error) {
		w.failed[n] = ep.Now()
		lost(n)
	})
	return len(w.homes) > 0
}

// Release gives the places back. A process that ends without is noticed later: see StaleAfter.
func (w *Writer) Release(ep rdma.Endpoint) {
	for _, h := range w.homes {
		w.release(ep, h)
	}
	w.homes = nil
}

func (w *Writer) release(ep rdma.Endpoint, h home) {
	w.on(ep, StepRelease, h.node, func(b *rdma.Batch) { b.CompareSwap(w.r.place(h.node, h.place), w.life, 0) },
		func(*rdma.Batch) {})
}

// on is onEach for one node. It notes the node's failure.
func (w *Writer) on(ep rdma.Endpoint, step rdma.Step, node int, fill, take func(b *rdma.Batch)) {
	onEach(ep, attend, step, []int{node}, func(b *rdma.Batch, _ int) { fill(b) },
		func(b *rdma.Batch, _ int) { take(b) },
		func(n int, _ error) { w.failed[n] = ep.Now() })
}
