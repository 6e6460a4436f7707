package shm

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// Fabric is an open pool. It is safe for concurrent use. Each process has its own for a pool that
// it opened; what they share is behind head. mapping is all of the pool, and head its beginning.
// boxes and rings are those of a mem: pool.
type Fabric struct {
	// Seed is what the workers' generators derive from; set it before the first Open. NewMem and
	// Open set it at random.
	Seed uint64
	// MTU is how long blocks of rings are: see rdma.RingPromises. It is 4096 until it is set before
	// the first Open.
	MTU int

	name    string // for messages
	g       Geometry
	handler rdma.Handler
	mapping []byte
	head    *header
	lives   lives
	backing backing
	faults  bool // a file: its pages may turn out to be missing when they are touched
	shared  bool // other users may change it: see Shared
	cleanup runtime.Cleanup

	closing atomic.Bool
	stop    chan struct{} // closed when closing is set

	tasks realtime.Tasks
	boxes boxes
	rings rings

	// mu is locked before any lock of lives. It guards users and closed, and is held by Open and
	// Forget. No other process is waited for under it.
	mu     sync.Mutex
	users  int  // endpoints, and 1 for the fabric until it is closed: the last one unmaps
	closed bool // all tasks have ended
}

// What the fabric can do beyond rdma.Fabric.
var (
	_ rdma.Fabric         = (*Fabric)(nil)
	_ rdma.Geometer       = (*Fabric)(nil)
	_ rdma.Committer      = (*Fabric)(nil)
	_ rdma.MasterReporter = (*Fabric)(nil)
	_ rdma.NodeMonitor    = (*Fabric)(nil)
	_ rdma.NodeKiller     = (*Fabric)(nil)
	_ rdma.ClientCrasher  = (*Fabric)(nil)
	_ rdma.Perishable     = (*Fabric)(nil)
	_ rdma.Peeker         = (*Fabric)(nil)
	_ rdma.Teller         = (*Fabric)(nil)
	_ rdma.Hoster         = (*Fabric)(nil)
)

// lives knows which clients are alive. Identity 0 is no client's: it is the lock of the
// configuration. No method waits. An error says that the kernel could not tell. Once a client's
// process has ended, held is false.
type lives interface {
	take(c rdma.ClientID) (bool, error) // begin c's life; false: another worker has it
	drop(c rdma.ClientID) error         // end it
	held(c rdma.ClientID) (bool, error) // whether a worker has it
	close() error
}

// backing reserves real memory for bytes of the mapping. commit keeps what is there, and may be
// repeated. After an error a part of the range may be backed.
type backing interface {
	commit(off, n uint64) error
	whole(size uint64) bool // reports whether there are still so many bytes
	removed() bool          // reports whether others can no longer open it
}

// newFabric takes over the mapping, and l. The fabric is its first user. Should all references to
// it be lost with endpoints open, the mapping is given back, and the locks are dropped with the
// files.
func newFabric(name string, g Geometry, mapping []byte, l lives, b backing, h rdma.Handler) *Fabric {
	f := &Fabric{
		Seed: rand.Uint64(), MTU: defaultMTU, name: name, g: g, handler: h, mapping: mapping,
		head: (*header)(unsafe.Pointer(unsafe.SliceData(mapping))), lives: l, backing: b,
		stop: make(chan struct{}), users: 1, boxes: boxes{at: map[rdma.BoxAddr]*mailbox{}},
		rings: rings{at: map[rdma.RingAddr]*ring{}},
	}
	// endpoints that were never closed
	f.cleanup = runtime.AddCleanup(f, func(m []byte) { _ = unix.Munmap(m) }, mapping)
	return f
}

// Nodes returns the number of memory nodes.
func (f *Fabric) Nodes() int { return f.g.Nodes }

// Size returns the bytes of registered memory of each node that the store has.
func (f *Fabric) Size() uint64 { return f.g.Memory }

// Geometry returns the pool's shape.
func (f *Fabric) Geometry() rdma.Geometry { return rdma.Geometry(f.g) }

// Commit makes sure that n bytes at off of a node are backed by real memory; without it a write
// there may find none. The error wraps rdma.ErrFull when there is none left. A node's memory
// stays backed from then on, also behind a crash. In a file what was neither committed nor
// touched has no pages.
func (f *Fabric) Commit(node int, off, n uint64) error {
	if uint(node) >= uint(f.g.Nodes) || off > f.g.registered() || n > f.g.registered()-off {
		return fmt.Errorf("commit %d bytes at %d:%#x: %w", n, node, off, rdma.ErrAccess)
	}
	if err := f.backing.commit(f.g.first()+uint64(node)*f.g.stride()+off, n); err != nil {
		return fmt.Errorf("back %d bytes of node %d of %s: %w", n, node, f.name, err)
	}
	return nil
}

// KillNode marks a node dead for every process: each verb posted to it from now on ends with
// rdma.ErrNodeDown. When it returns nil, the verbs that were being executed are over, too. The
// mark comes first, and each op of a Post looks at it. A Post that had looked before is waited
// for: its verbs at the node may still land. The mark is never taken back. A crash between the
// two leaves a node that is marked, and verbs that end by themselves. It waits for patience at
// most for each client that is in a Post, and then wraps rdma.ErrTimeout: the node is dead all
// the same.
func (f *Fabric) KillNode(node int) (err error) {
	if uint(node) >= uint(f.g.Nodes) {
		return fmt.Errorf("kill node %d: pool has %d nodes: %w", node, f.g.Nodes, rdma.ErrAccess)
	}
	defer f.guard(&err)()
	atomic.OrUint64(&f.head.members[node], downBit)
	for c := 1; c <= f.g.Clients; c++ {
		if err := f.drain(rdma.ClientID(c)); err != nil {
			return fmt.Errorf("kill node %d: %w", node, err)
		}
	}
	return nil
}

// NodeDown reports whether a node is marked dead.
func (f *Fabric) NodeDown(node int) (down bool) {
	defer f.guard(nil)()
	return isDown(atomic.LoadUint64(&f.head.members[node]))
}

// patience bounds the waits for others: for tasks that were asked to stop, and for a client in the
// midst of a Post.
const patience = 10 * time.Second

// Close asks the tasks to stop and joins them; those that do not stop within 10 s are named in
// the error, and may be waited for again. Endpoints that are open post no more; the last one's
// Close unmaps the pool. A second Close that finds all ended does nothing. Mailboxes end with
// their endpoints; Awaits of messages end at once.
func (f *Fabric) Close() error {
	f.mu.Lock()
	if !f.closing.Load() {
		// From here on no endpoint is opened, and no Post begins. mu keeps out an Open that is
		// under way.
		f.closing.Store(true)
		close(f.stop)
	}
	f.mu.Unlock()
	if err := f.tasks.Join(patience); err != nil {
		return fmt.Errorf("close %s: %w", f.name, err)
	}
	f.mu.Lock()
	first := !f.closed
	f.closed = true
	f.mu.Unlock()
	if first {
		return f.drop()
	}
	return nil
}

// drop gives up one use of the mapping. It is unmapped only when no endpoint can be in the midst
// of a Post. The files are closed behind that: the locks last as long as verbs could land.
func (f *Fabric) drop() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
	if f.users > 0 {
		return nil
	}
	f.cleanup.Stop()
	if err := unix.Munmap(f.mapping); err != nil {
		return fmt.Errorf("unmap %s: %w", f.name, err)
	}
	return f.lives.close()
}
