package ibverbs

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

// An adapter is an open port of a device: libibverbs, or a test's stand-in for it. What it makes is
// closed before it is.
type adapter interface {
	limits() limits
	// at names the device and its port.
	at() (device string, port int)
	// register lets the device use size bytes at base. They stay where they are until the memory is
	// closed. Remote: peers may READ and WRITE them and change them by atomics, if they know the
	// key.
	register(base unsafe.Pointer, size uint64, remote bool) (memory, error)
	// completions makes a completion queue with room for so many.
	completions(room int) (completions, error)
	// receives makes a queue with room for so many buffers, which messages come into.
	receives(room int) (receives, error)
	close() error
}

// limits are what an adapter can do.
type limits struct {
	inline int   // bytes of a WRITE or a SEND that travel in the work request itself
	depth  int   // work requests that a queue pair may hold
	room   int   // of a completion queue
	pairs  int   // queue pairs
	slots  int   // buffers that a receive queue may hold
	mtu    uint8 // of the port, as libibverbs counts
	fences bool  // a fence is kept by the device; else the worker does
}

// memory is registered.
type memory interface {
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
// concurrent use.
type completions interface {
	// pair makes a queue pair. Its completions come here. Peers may do with registered memory what
	// access says.
	pair(depth int, access access) (pair, error)
	// beside makes another completion queue, which arm and await of this one count for, too. It is
	// closed before this one.
	beside(room int) (completions, error)
	// post rings one doorbell a group, in one call, and notes in each group how many of its
	// requests were taken.
	post(groups []group, requests []request)
	// poll takes completions, waiting for the first for as long as spin says, without giving the
	// processor away.
	poll(into []completion, spin time.Duration) int
	// arm has the next completion end await. The caller polls once more in between: see there.
	arm() error
	// await waits for a completion behind the last arm, or until that time on realtime.Now.
	await(until time.Duration) error
	close() error
}

type access uint8

const (
	accessNone access = iota // only the own end posts
	accessRead
	accessAll
)

// receives is a queue of buffers that messages of several queue pairs come into. It is not safe for
// concurrent use.
type receives interface {
	// pair makes a queue pair. Its messages come into buffers of this queue. Their completions go
	// to q. Peers may do with registered memory what access says.
	pair(q completions, access access) (pair, error)
	// post adds a buffer of local memory at the end of the queue.
	post(id uint64, buffer []byte, key uint32) error
	close() error
}

// pair is one end of a reliable connection. Requests posted to it are executed in order, but that a
// READ or an atomic may be passed by later ones without a fence. Messages arrive in order.
type pair interface {
	// card says what the other end has to know.
	card() card
	// connect connects it to the other end.
	connect(remote card) error
	// handle names it in a group.
	handle() uintptr
	// stop has it take no more messages. Those that it took have their completions soon.
	stop() error
	// close destroys it: no more verbs that came in over it are executed, and local memory is not
	// touched any more.
	close() error
}

// request is one work request, laid out as verbs.h has it.
type request struct {
	remote uint64 // address at the other end
	local  uint64 // address of the bytes, or of where the word before an atomic goes
	a, b   uint64 // of an atomic: compare and swap, or add
	id     uint64
	n      uint32
	key    uint32 // of the local memory
	op     uint8  // an rdma.Verb, but no masked one, and no APPEND: that is SENDs and a READ
	flags  uint8
	_      [6]byte
}

const (
	flagFence  = 1 << iota // start behind earlier READs and atomics
	flagSignal             // a completion when it is over; one that fails always has one
	flagInline             // the bytes are copied when it is posted
)

// group is the requests for one queue pair, laid out as verbs.h has it.
type group struct {
	pair  uintptr
	key   uint32 // of the remote memory
	first uint32 // in the requests of a post
	n     uint32
	taken uint32 // how many were, in order
	errno int32  // why not all
	_     [4]byte
}

// completion tells that a work request, and those in front of it on the same queue pair, are over.
// Laid out as verbs.h has it.
type completion struct {
	id     uint64
	status status
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
	statusAborted      status = 15
)

var statusText = map[status]string{
	statusLocalLength: "local length error", statusLocalQP: "local queue pair operation error",
	statusProtection: "local protection error", statusFlushed: "flushed", statusBadRequest: "remote invalid request",
	statusRemoteAccess: "remote access error", statusRemoteOp: "remote operation error",
	statusRetries: "no answer after all retries", statusNotReady: "receiver not ready after all retries",
	statusAborted: "remote abort",
}

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

// strayed reports whether the verb itself was wrong: outside of what its sender may touch.
func (c completion) strayed() bool {
	switch c.status {
	case statusLocalLength, statusLocalQP, statusProtection, statusBadRequest, statusRemoteAccess, statusRemoteOp:
		return true
	}
	return false
}
