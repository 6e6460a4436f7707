// Package trace looks over a worker's shoulder: it logs what an endpoint posts in lines that read
// as prose, and counts the trips that an operation takes.
package trace

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Trips runs f and returns what ep counted meanwhile: trips, verbs, bytes. The papers' trip counts
// are assertions on it.
func Trips(ep rdma.Queue, f func()) rdma.Counters {
	before := *ep.Counters()
	f()
	return ep.Counters().Sub(before)
}

// kept is how many words of a READ or WRITE a Record keeps.
const kept = 4

// Record is one verb or call of a worker.
type Record struct {
	At     time.Duration // when it was posted, by the worker's clock
	Worker string
	Step   rdma.Step
	Batch  uint64 // number among the worker's; 0: a call
	Chain  int
	// that it takes, by the worker's trip clock: behind a fence that stalls, one more than the
	// batch's first
	Trip   uint64
	Waited bool // the worker has waited for the batch, or the call; otherwise it was no trip of its

	Verb          rdma.Verb // 0: a two-sided call
	Proc          rdma.Proc
	Addr          rdma.Addr
	Len           int // bytes
	Fence         bool
	Expect, Value uint64 // of an atomic
	Result        uint64 // the word before an atomic
	After         uint64 // and behind it
	// what was read, written or sent, little-endian, from the beginning; without what a SEND
	// gathers
	Words [kept]uint64
	Done  bool // what it answered is known: Result, Words of a READ, Err
	Err   error
}

// Ring keeps the last records of any number of workers. It is safe for concurrent use.
type Ring struct {
	mu      sync.Mutex
	records []Record
	next    uint64 // number of the next record; it goes to next % len
}

// NewRing returns a ring of n records.
func NewRing(n int) *Ring { return &Ring{records: make([]Record, n)} }

// add stores r and returns its number.
func (g *Ring) add(r Record) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.records[g.next%uint64(len(g.records))] = r
	g.next++
	return g.next - 1
}

// change calls f with record n, if the ring still has it.
func (g *Ring) change(n uint64, f func(r *Record)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n+uint64(len(g.records)) >= g.next {
		f(&g.records[n%uint64(len(g.records))])
	}
}

// Next returns the number of the next record.
func (g *Ring) Next() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.next
}

// Records returns what the ring holds, the oldest first.
func (g *Ring) Records() []Record { return g.From(0) }

// From returns what the ring holds of the records from a number on.
func (g *Ring) From(first uint64) []Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	size := uint64(len(g.records))
	var all []Record
	for n := max(first, g.next-min(g.next, size)); n < g.next; n++ {
		all = append(all, g.records[n%size])
	}
	return all
}

// WriteTo writes the records as lines.
func (g *Ring) WriteTo(w io.Writer) (n int64, err error) {
	for _, r := range g.Records() {
		k, err := fmt.Fprintln(w, r)
		if n += int64(k); err != nil {
			return n, err
		}
	}
	return n, nil
}

// String returns r as a line: the time, the worker, its step, the verb or call, and how it ended.
func (r Record) String() string {
	t := fmt.Sprintf("%14v  %s", r.At, r.Worker)
	if r.Step != "" {
		t += " [" + string(r.Step) + "]"
	}
	if r.Verb == 0 {
		t += fmt.Sprintf(": calls procedure %d of node %d", r.Proc, r.Addr.Node())
	} else if r.Verb == rdma.Send || r.Verb == rdma.Append {
		t += fmt.Sprintf(": batch %d, %s %s", r.Batch, r.Verb, r.Verb.Target(r.Addr))
	} else {
		t += fmt.Sprintf(": batch %d, %s %s", r.Batch, r.Verb, r.Addr)
	}
	switch {
	case r.Verb != 0 && !r.Verb.Atomic():
		t += fmt.Sprintf(", %d bytes", r.Len)
	case r.Verb == rdma.FetchAdd:
		t += fmt.Sprintf(" by %d", int64(r.Value))
	case r.Verb.Atomic():
		t += fmt.Sprintf(" from %#x to %#x", r.Expect, r.Value)
	}
	if r.Fence {
		t += ", fenced"
	}
	return t + r.end()
}

func (r Record) end() string {
	switch {
	case !r.Done && (r.Verb == 0 || r.Verb.Fetches()):
		return ", in flight"
	case r.Err != nil:
		return ": " + r.Err.Error()
	case r.Verb != 0 && !r.Verb.Atomic():
		t := ":"
		for i := range min(kept, (r.Len+7)/8) {
			t += fmt.Sprintf(" %#x", r.Words[i])
		}
		if r.Len > 8*kept {
			t += " ..."
		}
		if !r.Done {
			t += ", in flight"
		}
		return t
	case r.Verb == rdma.CompareSwap && r.Result == r.Expect:
		return ": swapped"
	case r.Verb.Atomic():
		return fmt.Sprintf(": met %#x", r.Result)
	}
	return ": answered"
}
