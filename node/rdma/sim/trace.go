package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// EventKind says what happened.
type EventKind uint8

// What a trace tells.
const (
	Post     EventKind = iota + 1 // a verb was sent
	Land                          // a verb, or some words of it, took effect
	Complete                      // its answer is at the requester
	Call                          // a two-sided call was sent
	Serve                         // its handler has run
	Crash                         // a client stopped
	Kill                          // a memory node died
	Revoke                        // a client was fenced off
	Fence                         // verbs of earlier epochs were
	Strike                        // a fault happened to a client; Step says which
	PowerCut                      // a memory node loses power
	Restart                       // a memory node is back
)

var eventKinds = [...]string{
	"", "posts", "lands", "completes", "calls", "is served", "crashes", "dies", "is fenced off",
	"is fenced to an epoch", "is hit by a fault", "loses power", "is back",
}

// String returns what a worker, or a node, does or suffers.
func (k EventKind) String() string { return eventKinds[k] }

// Event is one thing that happened in a run.
//
// A verb makes one Post, a Land for each piece that lands, and a Complete; a call makes a Call and
// a Serve. Of other kinds Worker names what it happened to. Op, Verb and what follows are of verbs;
// of calls, Addr is the node and Value the procedure.
type Event struct {
	// At is virtual time. Client is 0 for nodes and for Fence, of which Value is the epoch.
	At     time.Duration
	Kind   EventKind
	Worker string
	Client rdma.ClientID
	Step   rdma.Step // what was posted, or a fault
	Batch  uint64    // number of the batch among its worker's
	Op     int       // number of the op in its batch

	Verb  rdma.Verb
	Addr  rdma.Addr
	Len   int // bytes
	Words int // words that landed now; less than all when it tears
	// Expect and Value are an atomic's; Result is the word before it, and set from Land on. Err is
	// why the verb failed, as far as it is known by then.
	Expect, Value, Result uint64
	Err                   error
}

// String returns the event as a line of a readable replay. It has the time first, so that a trace
// reads as a log. The same run has the same text.
func (e Event) String() string {
	var t strings.Builder
	fmt.Fprintf(&t, "%12v  %s", e.At, e.Worker)
	if e.Step != "" {
		fmt.Fprintf(&t, " [%s]", e.Step)
	}
	fmt.Fprintf(&t, " %s", e.Kind)
	switch e.Kind {
	case Crash, Revoke, Fence, Kill, Strike, PowerCut, Restart:
		return t.String()
	case Call, Serve:
		fmt.Fprintf(&t, " at node %d, procedure %d", e.Addr.Node(), e.Value)
	default:
		fmt.Fprintf(&t, " %d.%d %s %s", e.Batch, e.Op, e.Verb, e.Addr)
		switch {
		case !e.Verb.Atomic():
			fmt.Fprintf(&t, " %d bytes", e.Len)
		case e.Verb == rdma.FetchAdd:
			fmt.Fprintf(&t, " +%#x", e.Value)
		default:
			fmt.Fprintf(&t, " %#x -> %#x", e.Expect, e.Value)
		}
	}
	if e.Kind == Land && !e.Verb.Atomic() {
		fmt.Fprintf(&t, ", words landed: %d", e.Words)
	}
	if e.Kind != Post && e.Verb.Atomic() {
		fmt.Fprintf(&t, ", was %#x", e.Result)
	}
	if e.Err != nil {
		fmt.Fprintf(&t, ": %v", e.Err)
	}
	return t.String()
}

// traceOp is kept out of the way of runs without a trace.
func (net *network) traceOp(k EventKind, f *flight, words int) {
	if net.opts.Trace == nil {
		return
	}
	op := f.op
	net.trace(Event{
		Kind: k, Worker: f.ep.name, Client: f.ep.id, Step: f.step, Batch: f.number, Op: f.index,
		Verb: op.Verb, Addr: op.Addr, Len: op.Len(), Words: words,
		Expect: op.Expect, Value: op.Value, Result: op.Result, Err: f.err,
	})
}
