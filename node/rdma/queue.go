package rdma

import (
	"bytes"
	"math/rand/v2"
	"time"
)

// ClientID is a worker's identity in its pool: what owns memory, and what Revoke names. 0 is no
// client. An identity is not handed out again while anything of its last holder can still be read.
type ClientID uint16

// All, as the count of Queue.Wait, waits for every chain.
const All = -1

// Forever, as the limit of Queue.Wait, waits without one.
const Forever = time.Duration(1<<63 - 1)

// Queue is one worker's connections to the pool's memory nodes. It is not safe for concurrent use.
//
// Per node, ops execute in posting order, but a READ or an atomic may be passed by later ops unless
// those have Fence set; across nodes there is no order. An op has no effect if one of its batch
// that was posted before it to the same node was lost with the connection: so a CAS shows that the
// WRITE before it in the chain has landed. A word that is ever changed by an atomic is changed by
// atomics only.
type Queue interface {
	// Batch returns an empty batch.
	Batch() *Batch
	// Post sends a batch; it does not wait. An error means that nothing of the batch was sent. The
	// failure of single ops is in Op.Err.
	Post(b *Batch) error
	// Wait returns nil when n chains of b (All: every one) are complete, whether they succeeded or
	// failed, and an error wrapping ErrTimeout after the given time; the rest stays in flight, to
	// be waited for again.
	Wait(b *Batch, n int, within time.Duration) error
	// Call runs one of the node's procedures and waits for its answer: a two-sided call. After an
	// error that wraps ErrTimeout the procedure may run at any time. After any other error it has
	// run, or never will, as soon as the node executes an op that is posted behind the error.
	Call(node int, r *Request, within time.Duration) error
	// Counters returns the queue's counters, which only grow. Only the worker may read them.
	Counters() *Counters
	// NodeCounters returns what of it was at each node, up to the last that the queue has used.
	// Only the worker may read them, until its next Post or Call.
	NodeCounters() []NodeCounters
	// Client returns the worker's identity.
	Client() ClientID
	// Life tells the worker from earlier and later holders of its identity: see Client.Life. A
	// caller that fences the worker off names the life, since a worker that was cut off may have
	// lost its identity to another.
	Life() uint64
	// Join makes the worker a member of the pool's current view and returns that. A worker that was
	// opened has joined the view of that moment. When the view changed since, and verbs of the
	// older epoch were fenced off (Control.Fence), Post, Call and the ops in flight fail with
	// errors wrapping ErrStale until the worker joins again. Verbs that failed so may have landed
	// before; they will not land later.
	Join() (View, error)
	// Close waits for nothing: verbs in flight may still land, unless the worker is the pool's
	// master: Close ends its tenure. It gives the identity back.
	Close() error
}

// Env is the time, randomness and tasks of a worker: the wall's, or virtual ones.
type Env interface {
	// Now is the time since an arbitrary beginning, the same for every worker of a pool on one
	// machine.
	Now() time.Duration
	// Sleep pauses the worker.
	Sleep(d time.Duration)
	// Rand is the worker's own generator, derived from the run's seed.
	Rand() *rand.Rand
	// Go starts a task with an endpoint of its own, closed when f returns. The fabric's Close joins
	// it.
	Go(name string, f func(Endpoint)) error
}

// Endpoint is all that a store may use of the world.
type Endpoint interface {
	Queue
	Env
}

// Fabric is an open pool: memory nodes, and the way to them. It is safe for concurrent use.
type Fabric interface {
	Control
	// Nodes returns the number of memory nodes, and Size the bytes of registered memory of each
	// that the store has.
	Nodes() int
	Size() uint64
	// Open returns an endpoint for one worker, with an identity of its own. The name is for people.
	Open(name string) (Endpoint, error)
	// Revoke fences a client off: when it returns nil, no verb that the client posted before can
	// land any more, and none that it posts later will.
	Revoke(c ClientID) error
	// RevokeLife is Revoke for the holder of an identity that Clients described, and no other: a
	// successor is not harmed.
	RevokeLife(c Client) error
	// Clients lists the identities in use: live ones, and those of workers that died without
	// closing; none where they cannot be listed now, see ListClients.
	Clients() []Client
	// Forget frees the identity of a client, as Clients described it, that died, or was fenced off
	// and closed, once nothing of it is left. The error wraps ErrHeld while a worker has the
	// identity. A successor of that client keeps it.
	Forget(c Client) error
	// Close joins the fabric's tasks and gives back what it holds. The pool stays.
	Close() error
}

// ListClients is f.Clients, or why they cannot be listed now: an error wrapping ErrUnreachable, of
// fabrics that know the clients of other processes.
func ListClients(f interface{ Clients() []Client }) ([]Client, error) {
	if l, ok := f.(ClientLister); ok {
		return l.ListClients()
	}
	return f.Clients(), nil
}

// ListJoined returns f's clients as they were when ep joined its view last, if it knows, or else as
// they are, or why they cannot be listed now.
func ListJoined(ep Endpoint, f Fabric) ([]Client, error) {
	if l, ok := ep.(ClientLister); ok {
		return l.ListClients()
	}
	return ListClients(f)
}

// Client describes an identity in use.
type Client struct {
	ID    ClientID
	Name  string
	Life  uint64 // no two holders of an identity have the same
	PID   int    // process, where there is one
	Alive bool   // false: the worker died without closing or was fenced off, and what it owns waits for recovery
	Held  bool   // a worker has it; not alive and held: it was fenced off, and has not closed
}

// Request is a two-sided call's message, both ways: fixed words, so that a call allocates nothing.
type Request struct {
	Step   Step // what the call is for; it stays with the caller
	Proc   Proc
	Client ClientID  // the caller; set by the fabric
	Arg    [6]uint64 // the question
	Ret    [6]uint64 // the answer
}

// Proc names a node's procedure.
type Proc uint16

// Handler serves two-sided calls on a node. It has one linearization point, an atomic on the node's
// memory, so that a fabric without node processes may run it in the caller and a crash inside it
// leaves it done or not begun.
type Handler func(m Memory, r *Request) error

// Memory is a node's own view of its registered memory; offsets are those of Addr.
type Memory interface {
	Node() int
	Size() uint64
	// Load, CompareSwap and FetchAdd work on the aligned word at off. CompareSwap and FetchAdd
	// return the word before. They go through the fabric, so that they are atomic with the verbs of
	// all workers.
	Load(off uint64) uint64
	CompareSwap(off, expect, value uint64) uint64
	FetchAdd(off, n uint64) uint64
	// Commit makes sure that n bytes at off are backed by real memory; ErrFull when there is none.
	Commit(off, n uint64) error
}

// Counters count what a queue did. A trip is a round trip on the worker's critical path: batches
// that fly together count once, and a fence that stalls counts one more.
type Counters struct {
	Trips      uint64
	Doorbells  uint64 // one a node and post
	Reads      uint64 // verbs
	Writes     uint64
	Atomics    uint64
	Sends      uint64 // messages, and entries of rings, with each of which goes a READ
	Calls      uint64 // two-sided calls; each is also a trip
	BytesRead  uint64
	BytesWrote uint64 // by WRITEs, SENDs and APPENDs
}

// Verbs returns the number of verbs.
func (c *Counters) Verbs() uint64 { return c.Reads + c.Writes + c.Atomics + c.Sends }

// Sub returns what was counted since before.
func (c Counters) Sub(before Counters) Counters {
	return Counters{
		Trips: c.Trips - before.Trips, Doorbells: c.Doorbells - before.Doorbells,
		Reads: c.Reads - before.Reads, Writes: c.Writes - before.Writes, Atomics: c.Atomics - before.Atomics,
		Sends: c.Sends - before.Sends, Calls: c.Calls - before.Calls, BytesRead: c.BytesRead - before.BytesRead,
		BytesWrote: c.BytesWrote - before.BytesWrote,
	}
}

// Add returns the sum of c and d.
func (c Counters) Add(d Counters) Counters {
	return Counters{
		Trips: c.Trips + d.Trips, Doorbells: c.Doorbells + d.Doorbells,
		Reads: c.Reads + d.Reads, Writes: c.Writes + d.Writes, Atomics: c.Atomics + d.Atomics,
		Sends: c.Sends + d.Sends, Calls: c.Calls + d.Calls, BytesRead: c.BytesRead + d.BytesRead,
		BytesWrote: c.BytesWrote + d.BytesWrote,
	}
}

// NodeCounters count what a queue did at one node: see Counters.
type NodeCounters struct {
	Doorbells             uint64
	Reads, Writes         uint64
	Atomics, Sends, Calls uint64
	BytesRead, BytesWrote uint64

	rung uint64 // the last post with a doorbell here
}

// Do posts b, unless it is empty, and waits for all of it. It returns the first op's failure, too.
func Do(q Queue, b *Batch, within time.Duration) error {
	if b.Len() == 0 {
		return nil
	}
	if err := q.Post(b); err != nil {
		return err
	}
	if err := q.Wait(b, All, within); err != nil {
		return err
	}
	return b.Err()
}

// ReadBytes reads n bytes at a as a step of a protocol. They are the caller's.
func ReadBytes(q Queue, step Step, a Addr, n int, within time.Duration) ([]byte, error) {
	b := q.Batch()
	defer b.Release()
	op := b.Read(a, n)
	if err := Do(q, b.As(step), within); err != nil {
		return nil, err
	}
	return bytes.Clone(op.Buf), nil
}

// ReadWord reads the word at a as a step of a protocol.
func ReadWord(q Queue, step Step, a Addr, within time.Duration) (uint64, error) {
	b := q.Batch()
	defer b.Release()
	op := b.Read(a, 8)
	if err := Do(q, b.As(step), within); err != nil {
		return 0, err
	}
	return op.Word(0), nil
}
