package control

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// DefaultLease is for how long a node may serve since it last asked its peers, and how soon a
// client process counts as dead once nothing is heard of it; a pool is made with its own. A node
// asks each peer five times in a lease, so that it goes on serving when some answers are late.
const DefaultLease = 300 * time.Millisecond

// MaxMemory bounds what a node may offer, in bytes: 16 TiB, below the 2^48 that an rdma.Addr
// reaches.
const MaxMemory = 1 << 44

// OnLoopback reports whether an address is reached by this machine alone. A name is looked up,
// which waits for the resolver, and all that it means must be on loopback. An address that cannot
// be read counts as one that others reach, and so does one without a host. A node without a token
// listens on loopback only: see memnode.ErrOpen.
func OnLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return false
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	ips, err := net.LookupIP(host)
	return err == nil && len(ips) > 0 && !slices.ContainsFunc(ips, func(ip net.IP) bool { return !ip.IsLoopback() })
}

// Record is what every node of a pool knows of it. It never changes. It is what a node with a
// Region has durable of the pool. All nodes have the same, but for Index.
//
// It goes over the wire as JSON, and nodes with a Region keep it so: names of fields are a part of
// both formats. A process that opens the pool takes it from any node that has sealed it, and checks
// it as a node does. Lease lies between a millisecond and MaxLease. MTU, Fabric and Registry are
// chosen when the pool is made. A process that opens the pool takes MTU from here, and is told of
// Fabric and Registry by OtherFabric and OtherRegistry when it came without them.
type Record struct {
	ID        string   `json:"id"`
	Index     int      `json:"index"`     // of this node
	Nodes     int      `json:"nodes"`     // that hold memory; the rest are witnesses
	Addresses []string `json:"addresses"` // by node, and then by witness
	Memory    uint64   `json:"memory"`    // bytes a node, with those of telemetry
	Telemetry uint64   `json:"telemetry"` // of them, behind the store's
	Clients   int      `json:"clients"`   // workers at a time
	// Lease is the same at all nodes: an expulsion waits for the longest that a node may hold.
	Lease time.Duration `json:"lease"` // of nodes, and of client processes
	// what keeps the registry: "" for the nodes themselves, or an address
	Registry string `json:"board"`
	MTU      int    `json:"mtu,omitempty"` // of rings; 0: defaultMTU
	// what verbs go over: "" for this package's connections, or that of the nodes' devices
	Fabric string `json:"fabric"`
}

const (
	// Bounds of a pool. tcp.Endpoint.Post has a bit for each node. Identities are an rdma.ClientID,
	// of 16 bits, and 0 is none.
	maxPoolNodes = 256
	maxClients   = 1<<16 - 1
	MaxLease     = 10 * time.Second // a crash costs one, and a master's tenure is some: see Control.Tenure
)

// mostVoters bounds the nodes that take part in decisions, and grant leases: if all did, each node
// would need a conversation with each. Of 7 any 4 are a majority, so that a pool survives the death
// of 3 of them. It is a part of the protocol: two processes that differ on it could have majorities
// with no node in common.
const mostVoters = 7

// Voters returns how many nodes are voters: as many of the first ones. Memory nodes come before
// witnesses, so that witnesses beyond mostVoters are none. Expelled nodes still count: a majority
// is one of all voters that the pool was made with.
func (r *Record) Voters() int { return min(len(r.Addresses), mostVoters) }

// The payload of a packet of most RNICs, at the least and at the most.
const (
	MinMTU     = 256
	DefaultMTU = 4096
)

// BlockBytes returns how long a block of a ring's entry is.
func (r *Record) BlockBytes() int { return cmp.Or(r.MTU, DefaultMTU) }

// Check returns why no node that offers so many bytes of memory can be of such a pool. The error
// wraps rdma.ErrAccess, or rdma.ErrFull. It trusts nothing in the record: the maker calls it before
// it asks a node, a node when it is asked to adopt the pool or remembers it, and a process that
// opens the pool when nodes have told it. A witness needs no memory.
func (r *Record) Check(memory uint64) error {
	n := len(r.Addresses)
	switch {
	case n < 1 || n > maxPoolNodes || r.Index < 0 || r.Index >= n || r.Nodes < 1 || r.Nodes > n:
		return fmt.Errorf("node %d of %d: %w", r.Index, n, rdma.ErrAccess)
	case len(r.ID) < 16 || len(r.ID) > 64:
		return fmt.Errorf("pool %q: %w", r.ID, rdma.ErrAccess)
	case r.Memory < 8 || r.Memory%8 != 0:
		return fmt.Errorf("%d bytes a node: want a multiple of 8: %w", r.Memory, rdma.ErrAccess)
	case r.Telemetry >= r.Memory || r.Telemetry%8 != 0:
		return fmt.Errorf("%d of %d bytes a node for telemetry: want less, and a multiple of 8: %w", r.Telemetry,
			r.Memory, rdma.ErrAccess)
	case r.Memory > memory && r.Index < r.Nodes:
		return fmt.Errorf("the pool wants %d bytes a node, %d of them for telemetry, and this one offers %d: %w",
			r.Memory, r.Telemetry, memory, rdma.ErrFull)
	case r.Clients < 1 || r.Clients > maxClients:
		return fmt.Errorf("%d clients: want 1 to %d: %w", r.Clients, maxClients, rdma.ErrAccess)
	case r.BlockBytes() < MinMTU || r.BlockBytes() > DefaultMTU || r.BlockBytes()%rdma.Stride != 0:
		return fmt.Errorf("blocks of %d bytes: want %d to %d, a multiple of %d: %w", r.BlockBytes(), MinMTU, DefaultMTU,
			rdma.Stride, rdma.ErrAccess)
	case r.Lease < time.Millisecond || r.Lease > MaxLease:
		return fmt.Errorf("a lease of %v: want 1ms to %v: %w", r.Lease, MaxLease, rdma.ErrAccess)
	}
	return nil
}
