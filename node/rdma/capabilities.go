package rdma

import (
	"fmt"
	"time"
)

// Capabilities are what some fabrics and endpoints can do beyond Fabric and Endpoint. A caller asks
// for one with a type assertion, such as f.(NodeKiller), and goes without it as the comment of the
// capability says. The lines "Has it" are compared with the fabrics by a test of package fabrics.
//
// There is no way to unwrap: only tests decorate a Fabric, and a decorator that embeds the
// interface hides the capabilities of what it decorates.

// Geometry is the shape of a pool.
type Geometry struct {
	Nodes   int    // memory nodes
	Memory  uint64 // bytes of registered memory at each that the store has: Fabric.Size
	Clients int    // workers at a time
	// Telemetry is how many bytes more are registered at each node, behind the store's: see package
	// telemetry.
	Telemetry uint64
}

// Registered returns how many bytes are registered at each node.
func (g Geometry) Registered() uint64 { return g.Memory + g.Telemetry }

// Geometer is a Fabric that knows the shape of its pool, with the number of clients that it has
// places for. Without it that number is unknown.
//
// Has it: shm, tcp, ibverbs.
type Geometer interface {
	Geometry() Geometry
}

// Committer is a Fabric with memory that must be backed before it is written, since it is taken as
// it is used. Without it all memory is backed from the beginning. Package node has a function
// Commit that asks.
//
// Has it: shm.
type Committer interface {
	// Commit makes sure that n bytes at off of a node are backed by real memory. The error wraps
	// ErrFull when there is none left.
	Commit(node int, off, n uint64) error
}

// ClientLister is a Fabric that may be unable to list its clients, since their identities are kept
// elsewhere. Without it Fabric.Clients always knows. The function ListClients asks. An Endpoint
// that has it lists the clients as they were when it joined the view last: one question tells of
// both. ListJoined asks it.
//
// Has it: tcp, ibverbs.
type ClientLister interface {
	// ListClients is Fabric.Clients, or an error that wraps ErrUnreachable.
	ListClients() ([]Client, error)
}

// MasterReporter is a Fabric that knows its pool's master. Without it the master is unknown.
//
// Has it: shm, tcp, ibverbs.
type MasterReporter interface {
	// Master returns the role of the pool's master, and for how long it lasts yet at most; false:
	// there is none, or it cannot be known now.
	Master() (r Role, left time.Duration, ok bool)
}

// NodeMonitor is a Fabric that knows which memory nodes are out of reach, before the view says so.
// Without it nodes are taken to be up as long as the view has them.
//
// Has it: shm, tcp, ibverbs.
type NodeMonitor interface {
	// NodeDown reports whether a node is down, or out of this process's reach.
	NodeDown(node int) bool
}

// NodeGracer is a Fabric on which a node that fails verbs may come back. Without it a node that
// fails a verb is down for good.
//
// Has it: tcp, ibverbs.
type NodeGracer interface {
	// NodeGrace returns for how long a node must have failed verbs before it may be expelled; 0: it
	// is known to be gone.
	NodeGrace(node int) time.Duration
}

// ExpelChecker is a Fabric on which a process may be cut off from nodes that are well. Without it
// every process may expel nodes that fail.
//
// Has it: tcp, ibverbs.
type ExpelChecker interface {
	// MayExpel returns an error that wraps ErrUnreachable when too few nodes answer this process to
	// expel another one.
	MayExpel() error
}

// NodeKiller is a Fabric that can take a memory node away, as a crash would. Without it the node's
// process has to be ended where it runs.
//
// Has it: shm, sim.
type NodeKiller interface {
	// KillNode makes every verb that is posted to the node from now on end in ErrNodeDown, for
	// every process.
	KillNode(node int) error
}

// ClientCrasher is a Fabric that can kill the process of a client of this machine. Without it the
// process has to be killed where it runs.
//
// Has it: shm.
type ClientCrasher interface {
	// CrashClient kills the process of a client as Clients described it: at once, or with a step
	// when the client comes to that step of its protocol. Errors wrap ErrClosed when the client is
	// not alive, or ErrNotSupported.
	CrashClient(c Client, step Step) error
}

// CPUMeter is a Fabric with memory nodes that are processes and count their processor time. Without
// it nodes take none beyond the clients'.
//
// Has it: tcp, ibverbs.
type CPUMeter interface {
	// CPU returns the processor time that all nodes that answer have used together.
	CPU() (time.Duration, error)
}

// Perishable is a Fabric of a pool that may be removed while it is open. Without it the pool lasts
// until it is closed.
//
// Has it: shm, tcp, ibverbs.
type Perishable interface {
	// Gone returns an error that wraps ErrNoPool once the pool is gone for good, and nil while it
	// may be there.
	Gone() error
}

// Localizer is a Fabric with memory nodes that are processes, maybe of other machines. Without it
// there are no processes to share the processors with.
//
// Has it: tcp, ibverbs.
type Localizer interface {
	// Local reports whether all nodes are processes of this machine, as far as their addresses
	// tell.
	Local() bool
}

// TenureAdviser is a Fabric of which the masters need longer leases than those of shared memory,
// since it costs round trips to renew one. Without it the caller's default will do.
//
// Has it: tcp, ibverbs.
type TenureAdviser interface {
	// Tenure is how long the lease of a master of this pool should be.
	Tenure() time.Duration
}

// AccessReporter is a Fabric that may be open for reading alone. Without it every process may
// write.
//
// Has it: tcp, ibverbs.
type AccessReporter interface {
	// ReadOnly reports whether this process may do nothing but read.
	ReadOnly() bool
}

// CloseNotifier is a Fabric that calls back when it is closed, so that what was lent to it, such as
// a registry, can be closed behind it. Without it the lender has to wrap Close.
//
// Has it: tcp, ibverbs.
type CloseNotifier interface {
	// OnClose has f called by Close, behind the Fabric's last use of anything. It is called once,
	// before the Fabric is shared.
	OnClose(f func())
}

// CarrierNamer is a Fabric with an address that may not say what its verbs go over, since the pool
// is found by a name. Without it the address does.
//
// Has it: tcp, ibverbs.
type CarrierNamer interface {
	// Carrier returns the fabric that verbs go over, as in addresses that name memory nodes.
	Carrier() string
}

// Peeker is a Fabric that lets a process look at the pool without being one of its clients: a look
// takes none of the places for clients, and when its process dies there is nothing to recover.
// Without it a look takes an identity. The function Peek asks.
//
// Has it: shm, tcp, ibverbs.
type Peeker interface {
	// Peek returns an endpoint of client 0, which may READ, join views and tell the time. Other
	// verbs, and calls, end in errors that wrap ErrAccess. The name is for people.
	Peek(name string) (Endpoint, error)
}

// Peek returns an endpoint to look at a pool with: one without an identity, where the fabric has
// such, or else an ordinary one.
func Peek(f Fabric, name string) (Endpoint, error) {
	if p, ok := f.(Peeker); ok {
		return p.Peek(name)
	}
	return f.Open(name)
}

// Teller is a Fabric that lets a process write its telemetry without being one of the pool's
// clients, as Peeker lets it look. Without it that takes an identity. The function Tell asks.
//
// Has it: shm, tcp, ibverbs.
type Teller interface {
	// Tell returns an endpoint of client 0, as Peek does, to which all verbs are allowed on what
	// Geometry.Telemetry says is behind the store's memory. Nothing waits for these verbs when a
	// node is taken away or a client fenced off. ibverbs, of which the connections either may write
	// or not, returns one with an identity.
	Tell(name string) (Endpoint, error)
}

// Tell returns an endpoint to write telemetry with: one without an identity, where the fabric has
// such, or else an ordinary one.
func Tell(f Fabric, name string) (Endpoint, error) {
	if t, ok := f.(Teller); ok {
		return t.Tell(name)
	}
	return f.Open(name)
}

// Messenger is an Endpoint that sends and receives messages. Without it there are none. The
// function Listen asks.
//
// Has it: shm, tcp, ibverbs, sim.
type Messenger interface {
	// Listen opens the worker's mailbox, of which it has one at a time. The error wraps ErrExists
	// when it has one, or when another worker has that number; ErrNodeDown where none of its nodes
	// answers; ErrFull where the device has fewer buffers; ErrNotSupported of a pool in shared
	// memory: no process can wake its workers. (A mem: pool, which is of one process, has
	// messages.)
	Listen(o BoxOptions) (Mailbox, error)
}

// Listen opens the mailbox of a worker. Where its fabric has no messages the error wraps
// ErrNotSupported.
func Listen(ep Endpoint, o BoxOptions) (Mailbox, error) {
	if m, ok := ep.(Messenger); ok {
		return m.Listen(o)
	}
	return nil, fmt.Errorf("listen for messages as client %d: %w", ep.Client(), ErrNotSupported)
}

// Ringer is an Endpoint that appends to rings, and has rings of its own. Without it there are none.
// The functions Rings and OpenRing ask.
//
// Has it: shm, tcp, ibverbs, sim.
type Ringer interface {
	// Rings returns what the fabric promises of rings. The error wraps ErrNotSupported when it has
	// none, as a pool in shared memory: a sender of another process could not be counted when it is
	// killed. (A mem: pool has rings.)
	Rings() (RingPromises, error)
	// OpenRing opens a ring without buffers. The error wraps ErrExists when there is one of that
	// number, or as Rings says.
	OpenRing(o RingOptions) (Ring, error)
}

// Rings returns what the fabric of a worker promises of rings. Where it has none the error wraps
// ErrNotSupported.
func Rings(ep Endpoint) (RingPromises, error) {
	if r, ok := ep.(Ringer); ok {
		return r.Rings()
	}
	return RingPromises{}, fmt.Errorf("append to rings as client %d: %w", ep.Client(), ErrNotSupported)
}

// OpenRing opens a ring. Where the worker's fabric has none the error wraps ErrNotSupported.
func OpenRing(ep Endpoint, o RingOptions) (Ring, error) {
	if r, ok := ep.(Ringer); ok {
		return r.OpenRing(o)
	}
	return nil, fmt.Errorf("open a ring as client %d: %w", ep.Client(), ErrNotSupported)
}

// Hoster is a Fabric that runs tasks beside memory nodes, which are parts of it. Without it a
// node's own process has to run them.
//
// Has it: shm, sim.
type Hoster interface {
	// Host starts a task that runs beside a memory node, with an endpoint of its own that is closed
	// when f returns, and joined by Close as other tasks. In virtual time it dies with its node,
	// and no Run waits for it. The error wraps ErrNotSupported of a pool in shared memory, which
	// has no process beside it. (A mem: pool is of one process.)
	Host(node int, name string, f func(Endpoint)) error
}

// ProcessNamer is a Fabric with memory nodes that count the processes that have the pool open.
// Without it nodes count none.
//
// Has it: tcp, ibverbs.
type ProcessNamer interface {
	// Process returns the name by which the nodes know this process.
	Process() string
}

// DeviceReporter is a Fabric with verbs that go over an RDMA device. Without it there is none.
//
// Has it: ibverbs.
type DeviceReporter interface {
	// Stats returns what the workers asked of the device, as far as they have told: when they wait,
	// and when they are closed.
	Stats() DeviceStats
	// Port names the device and the port of it that verbs go through, from 1.
	Port() (device string, port int)
}

// DeviceWorker is an Endpoint with verbs that go over an RDMA device. Without it the device's
// counters are all there is.
//
// Has it: ibverbs.
type DeviceWorker interface {
	// Untold returns what the worker did since it last told its Fabric. Only the worker may ask.
	Untold() DeviceStats
}

// DeviceStats count what workers asked of an RDMA device.
type DeviceStats struct {
	Posts       uint64 // calls into libibverbs that post, each of all that there is for all nodes
	Polls       uint64 // calls that look for completions
	Waits       uint64 // sleeps until the device tells of one
	Requests    uint64 // work requests
	Completions uint64
	Connects    uint64 // queue pairs that were connected
	Guesses     uint64 // plain compare and swaps that masked ones were made of, beyond one each
}

// Calls returns the calls into libibverbs in the course of verbs.
func (s DeviceStats) Calls() uint64 { return s.Posts + s.Polls }
