package ibverbs

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

// Between the fabric and libibverbs is the adapter. device.go implements it in cgo; tests have one
// in software, which brings the faults that hardware has too seldom.
//
// Addresses cross it as integers, so that requests may be handed to C as they are. Whatever is
// behind an address is kept by Go code: the flight of a request keeps its batch, and memory keeps
// what it registered. Go's heap does not move, and bytes that were handed in once have escaped to
// it.

// An adapter is an open port of a device: libibverbs, or a test's stand-in for it. What it makes is
// closed before it is. It is safe for concurrent use; the queues that it makes are not.
type adapter interface {
	// limits does not change while the adapter is open.
	limits() limits
	// at names the device and its port.
	at() (device string, port int)
	// register lets the device use size bytes at base. They stay where they are until the memory is
	// closed. Remote: peers may READ and WRITE them and change them by atomics, if they know the
	// key. The error wraps rdma.ErrFull, and says what limits the process.
	register(base unsafe.Pointer, size uint64, remote bool) (memory, error)
	// completions makes a completion queue with room for so many.
	completions(room int) (completions, error)
	// receives makes a queue with room for so many buffers, which messages come into. It closes
	// behind the queue pairs that it made.
	receives(room int) (receives, error)
	// close gives up the caller's hold of it. The device itself stays open for as long as anything
	// made of it is, so that endpoints that outlive their fabric go on.
	close() error
}

// limits are what an adapter can do.
type limits struct {
	// inline bytes need no registered memory, and cost the device no fetch.
	inline int // bytes of a WRITE or a SEND that travel in the work request itself
	// depth bounds Options.Depth: see newFabric.
	depth int // work requests that a queue pair may hold
	// room is divided among the queue pairs of a worker, or the streams of a ring.
	room  int // of a completion queue
	pairs int // queue pairs
	// slots bound those of a mailbox, and the places of a ring's stream that the device has.
	slots int // buffers that a receive queue may hold
	// mtu stands for 128<<mtu bytes: 1 is 256, 5 is 4096.
	mtu uint8 // of the port, as libibverbs counts
	// fences is false of soft-RoCE alone: see the package's part on order.
	fences bool // a fence is kept by the device; else the worker does
}

// memory is registered. It is closed once no queue pair is left that may touch it: a device does
// not ask before it writes.
type memory interface {
	// local is what requests and receive buffers of this end name. remote is what the other end's
	// requests name, and travels in a card; it means something only where register was told so.
	keys() (local, remote uint32)
	close() error
}

// noMemory is why memory was not registered, and what to do. The limit is of all that a process
// locks, so that less than it may be too much.
func noMemory(device string, size uint64, err error) error {
	var l unix.Rlimit
	if errors.Is(err, unix.ENOMEM) && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil && l.Cur != unix.RLIM_INFINITY {
		return fmt.Errorf("device %s: this process may lock %d bytes of memory in all, and this takes %d more "+
			"(hint: 'ulimit -l unlimited', or LimitMEMLOCK=infinity in the unit): %w", device,
			l.Cur, size, rdma.ErrFull)
	}
	return fmt.Errorf("device %s does not take %d bytes of memory: %w: %w", device, size, rdma.ErrFull, err)
}

// completions is a completion queue, and the one caller's way into the device. It is not safe for
// concurrent use. Two methods may run beside others: await, since a ring's goroutine sleeps in it
// while those of the node poll, and arm for a queue that was made beside this one. Queue pairs
// close before the queue that has their completions.
type completions interface {
	// pair makes a queue pair. Its completions come here. Peers may do with registered memory what
	// access says. depth is how many requests may be posted to it and not be known to be over.
	pair(depth int, access access) (pair, error)
	// beside makes another completion queue, which arm and await of this one count for, too. It is
	// closed before this one.
	beside(room int) (completions, error)
	// post rings one doorbell a group, in one call, and notes in each group how many of its
	// requests were taken. Requests are read before it returns, and so are inline bytes. What a
	// group's requests name otherwise belongs to the device until they are over.
	post(groups []group, requests []request)
	// poll takes completions, waiting for the first for as long as spin says, without giving the
	// processor away. One call takes 32 at most. Completions of one queue pair come in order.
	poll(into []completion, spin time.Duration) int
	// arm has the next completion end await. The caller polls once more in between: see there. A
	// completion that came in before it makes no event.
	arm() error
	// await waits for a completion behind the last arm, or until that time on realtime.Now. It may
	// return early, for an event of an earlier arm, and returns nil at that time, too. So callers
	// look again in any case.
	await(until time.Duration) error
	close() error
}

// access is what the other end of a queue pair may do. It is asked for when the queue pair is made,
// and holds until it is closed.
type access uint8

const (
	// accessNone is for each end that posts verbs, and for both ends of messages.
	accessNone access = iota // only the own end posts
	// accessRead is for readers, and for rings: their senders READ behind what they sent.
	accessRead
	accessAll
)

// receives is a queue of buffers that messages of several queue pairs come into. It is not safe for
// concurrent use. Buffers are taken in the order in which they were posted, by whichever sender's
// message comes next. A message takes one buffer, whatever its length.
type receives interface {
	// pair makes a queue pair. Its messages come into buffers of this queue. Their completions go
	// to q. Peers may do with registered memory what access says.
	pair(q completions, access access) (pair, error)
	// post adds a buffer of local memory at the end of the queue. The id comes back in the
	// completion of the message that took it. Until then the buffer is the device's. A message
	// longer than the buffer fails, at both ends.
	post(id uint64, buffer []byte, key uint32) error
	close() error
}

// pair is one end of a reliable connection. Requests posted to it are executed in order, but that a
// READ or an atomic may be passed by later ones without a fence. Messages arrive in order.
type pair interface {
	// card says what the other end has to know. It is known as soon as there is a queue pair: both
	// ends tell theirs before either connects.
	card() card
	// connect connects it to the other end. It does not wait for the other end, which may connect
	// later. What comes in before that is not answered, and its sender repeats it. The error wraps
	// rdma.ErrNotSupported where the networks differ.
	connect(remote card) error
	// handle names it in a group.
	handle() uintptr
	// stop has it take no more messages. Those that it took have their completions soon. Whatever
	// was posted to it is flushed, and so is what is posted later.
	stop() error
	// close destroys it: no more verbs that came in over it are executed, and local memory is not
	// touched any more.
	close() error
}

// request is one work request, laid out as verbs.h has it.
type request struct {
	// remote means nothing in a SEND.
	remote uint64 // address at the other end
	local  uint64 // address of the bytes, or of where the word before an atomic goes
	a, b   uint64 // of an atomic: compare and swap, or add
	// id comes back in the completion: see Endpoint.request.
	id uint64
	// n is 8 of an atomic, and mostPart at most of all others.
	n     uint32
	key   uint32 // of the local memory
	op    uint8  // an rdma.Verb, but no masked one, and no APPEND: that is SENDs and a READ
	flags uint8
	_     [6]byte
}

const (
	// flagFence is only set for a device whose limits say that it keeps fences.
	flagFence = 1 << iota // start behind earlier READs and atomics
	// A request without flagSignal is known to be over when a later one is.
	flagSignal // a completion when it is over; one that fails always has one
	// With flagInline local may be any memory, and key is not looked at.
	flagInline // the bytes are copied when it is posted
)

// group is the requests for one queue pair, laid out as verbs.h has it.
type group struct {
	// pair stays open between the making of a group and its post: one goroutine does both.
	pair  uintptr
	key   uint32 // of the remote memory
	first uint32 // in the requests of a post
	n     uint32
	// Those that were taken are executed, though the rest is not. Without the last one, which has
	// the signal, nothing ever tells of them.
	taken uint32 // how many were, in order
	errno int32  // why not all
	_     [4]byte
}

// completion tells that a work request, and those in front of it on the same queue pair, are over.
// Laid out as verbs.h has it. Of a failure only id, status, vendor and pair count. A failure takes
// the queue pair down: what is behind it on the same queue pair is flushed, one completion each.
type completion struct {
	id     uint64
	status status
	// vendor is for texts only.
	vendor uint32 // the device's own word for why
	n      uint32 // of a buffer that a message came into: its bytes
	pair   uint32 // and the number of the queue pair
}

// status is an ibv_wc_status.
type status uint32

// What a caller tells apart; the numbers are libibverbs'.
const (
	statusSuccess      status = 0
	statusLocalLength  status = 1
	statusLocalQP      status = 2
	statusProtection   status = 4
	statusFlushed      status = 5
	statusBadRequest   status = 9
	statusRemoteAccess status = 10
	statusRemoteOp     status = 11
	statusRetries      status = 12
	statusNotReady     status = 13
	statusAborted      status = 16
)

var statusText = map[status]string{
	statusLocalLength: "local length error", statusLocalQP: "local queue pair operation error",
	statusProtection: "local protection error", statusFlushed: "flushed", statusBadRequest: "remote invalid request",
	statusRemoteAccess: "remote access error", statusRemoteOp: "remote operation error",
	statusRetries: "no answer after all retries", statusNotReady: "receiver not ready after all retries",
	statusAborted: "remote abort",
}

// err is why a request failed, as an error of verbs. It wraps rdma.ErrAccess if the verb itself was
// wrong. In all other cases the verb may have been executed, and only its answer be lost: then the
// error wraps rdma.ErrNodeDown.
func (c completion) err() error {
	text, ok := statusText[c.status]
	if !ok {
		text = fmt.Sprintf("completion status %d", uint32(c.status))
	}
	if c.strayed() {
		return fmt.Errorf("%s (vendor %#x): %w", text, c.vendor, rdma.ErrAccess)
	}
	return fmt.Errorf("%s (vendor %#x): %w", text, c.vendor, rdma.ErrNodeDown)
}

// strayed reports whether the verb itself was wrong: outside of what its sender may touch. within
// and fillWay refuse before they post what is outside of the node's memory, or too long. What is
// left are verbs of readers that do more than READ, and ends that disagree about a key or an
// address.
func (c completion) strayed() bool {
	switch c.status {
	case statusLocalLength, statusLocalQP, statusProtection, statusBadRequest, statusRemoteAccess, statusRemoteOp:
		return true
	}
	return false
}
