// Package stores is the table of the stores: the only place that knows every one of them by name.
//
// A store is a file here, which registers a Kind. Its Options become flags of up, sim run and sim
// fuzz, properties of go-ycsb, their help, and what status shows: an option is declared there, and
// read there by its name.
package stores

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Params are chosen when a pool is made, and live in its header. Zero values mean defaults.
type Params struct {
	// Nodes are the memory nodes, spares included; default 3, plus the spares.
	Nodes int
	// Spares of the nodes are empty until they replace dead ones; default 0.
	Spares int
	// Memory is the size of each node in bytes; default: what Records of PairBytes need, with
	// room for changes.
	Memory uint64
	// Records is the expected number of pairs, which sizes the index; default 100,000.
	Records uint64
	// PairBytes is the size of a typical key and value together, which sizes the memory, default
	// 1,024; or that of the largest ones (Kind.Slots), default 1,152.
	PairBytes int
	// KeyBytes bounds a key, in stores that have separate room for keys; default: the store's.
	KeyBytes int
	// The number of replicas; default 2, or the store's.
	IndexReplicas int
	DataReplicas  int
	// Clients bounds the workers at a time; default 1,024.
	Clients int
	// Telemetry is how many processes can have a record: see package telemetry; default 64.
	Telemetry int
	// NoTelemetry: the pool has no telemetry, whatever Telemetry says.
	NoTelemetry bool
	// Workers is how many clients write at the same time: FUSEE's memory is sized for them. 0: few.
	Workers int
	// Timeout bounds that of an operation; default 2 s.
	Timeout time.Duration
	// Addresses are those of the memory nodes of a consul: pool, and behind them of its witnesses;
	// default: any nodes that are free.
	Addresses []string
	// Fabric of a consul: pool is "tcp" or "rdma"; default: the one that its nodes were started
	// for.
	Fabric string
	// Servers is how many places for clients the servers take, in addition to Clients. Size sets
	// it.
	Servers int
	// Overcommit: the pool is made even if this machine has less memory than it may need here.
	Overcommit bool
	// Own are the store's own options, of those that are Made.
	Own Values
}

// defaults sets the fields of p that are zero.
func (p *Params) defaults() {
	p.Nodes = cmp.Or(p.Nodes, 3+p.Spares)
	p.PairBytes = cmp.Or(p.PairBytes, 1024)
	p.IndexReplicas = cmp.Or(p.IndexReplicas, min(2, p.Nodes-p.Spares))
	p.DataReplicas = cmp.Or(p.DataReplicas, min(2, p.Nodes-p.Spares))
	p.Clients = cmp.Or(p.Clients, 1024)
	p.Records = cmp.Or(p.Records, 100_000)
	if p.Telemetry = cmp.Or(p.Telemetry, telemetry.Records); p.NoTelemetry {
		p.Telemetry = 0
	}
}

// sizeBy fills in what p leaves open of a pool with one copy of everything, unless p asks for more.
// pairBytes is what users chose; 0: nothing. pool returns how much memory the pool needs.
func sizeBy[T any](pool func(Params) (T, uint64, error), p Params, pairBytes int) Params {
	p.DataReplicas = cmp.Or(p.DataReplicas, p.IndexReplicas, 1)
	p.IndexReplicas = cmp.Or(p.IndexReplicas, p.DataReplicas)
	p.PairBytes = cmp.Or(pairBytes, slotBytes)
	p.defaults()
	if _, need, err := pool(p); err == nil {
		p.Memory = max(p.Memory, need)
	}
	return p
}

// Options are chosen when a worker opens a store. Zero values mean defaults.
type Options struct {
	// Timeout bounds an operation. It is at most the pool's, which is also the default.
	Timeout time.Duration
	// Own are the store's own options, of those that are Opened.
	Own Values
	// Fabric is the pool's. Workers of some stores revoke dead or stalled clients through it; nil:
	// only the pool's master does.
	Fabric rdma.Fabric
	// Process is what the workers of one process share; nil: this worker shares nothing.
	Process *Process
	// Without is what stores over Sherman's trees leave out. Only reports set it: they measure what
	// the parts cost.
	Without Without
}

// Kind is one store.
type Kind struct {
	Name string
	Doc  string // one line
	// Version is that of its format, which its pools have in their headers.
	Version uint32
	// Oldest is the oldest version of pools that it reads as well; 0: it reads Version alone.
	Oldest uint32
	// Size fills in the defaults of p for this store.
	Size func(p Params) Params
	// Refuse returns an error when the store has no pools of such parameters. Params.Check calls it
	// behind the checks that hold for all stores. nil: it refuses none.
	Refuse func(p Params) error
	// Format writes an empty store into the zeroed memory of a new pool.
	Format func(f rdma.Fabric, p Params) error
	// Open returns a worker's view of the store. The pool's header must name this store, or another
	// one with the same format.
	Open func(ep rdma.Endpoint, o Options) (client.Store, error)
	// Serve opens the server of one memory node, which runs for as long as the node serves. nil:
	// the store has no servers, and nodes only hold memory. ep is the endpoint of a worker that
	// runs beside the node: messages of mailboxes that it opens there, or that its tasks open, may
	// gather from the node's memory. ep reaches all nodes of the pool and may have rings. It has an
	// identity, and so has each of its tasks: Params.Servers counts them. The pool is formatted. f
	// has its configuration. In a pool of one process Start calls Serve, and on node processes each
	// node does.
	Serve func(ep rdma.Endpoint, f rdma.Configs, node int) (Server, error)
	// Device returns which part of each memory node is in the device memory of its NIC, if the NIC
	// has some; nil: no part is.
	Device func(p Params) (offset, bytes uint64, err error)
	// Check reads the whole structure and reports damage, and work for recovery.
	Check func(f rdma.Fabric) (Report, error)
	// Usage tells what the pool's memory is used for.
	Usage func(f rdma.Fabric) ([]Use, error)
	// Configuration returns a text with the pool's configuration in rdma.Configs. nil: the store
	// has none.
	Configuration func(f rdma.Fabric) (string, error)
	// Fill returns how full each part of a pool is that can become full. What it reads does not
	// grow with the pool, and clients may work meanwhile. nil: it is not known.
	Fill func(f rdma.Fabric) ([]Fill, error)
	// Outlives returns how many more memory nodes may die at once, any of them, before data is
	// unavailable. dead reports whether a node does not serve now. A negative result: data is
	// unavailable already. nil: it is not known.
	Outlives func(f rdma.Fabric, dead func(node int) bool) (int, error)
	// Recoverer returns a constructor of the store's recovery from dead nodes and clients. Each
	// candidate for the master calls it. nil: the store has no recovery.
	Recoverer func(f rdma.Configs) cluster.NewRecoverer
	// Durable: with persistent memory its pools keep all acknowledged writes when all nodes lose
	// power at once, and a node that comes back soon keeps its place in the pool.
	Durable bool
	// Majority: its pools go on with a majority of the nodes, and dead nodes are not replaced. Its
	// Recoverer is a cluster.QuorumRecoverer.
	Majority bool
	// Steps are the steps of the store's protocol, as its batches name them.
	Steps []rdma.Step
	// Describe returns a function that names what is at an address of a pool, for traces. It reads
	// the pool through ep: the caller keeps ep open while it uses the function. nil: traces show
	// addresses alone.
	Describe func(ep rdma.Endpoint) (func(a rdma.Addr) string, error)
	// Paper is how many trips the store's paper counts of a GET, UPDATE, INSERT or DELETE by a
	// client that knows where the key is.
	Paper map[string]int
	// MaxPair is the most bytes that a key and its value may have together in any pool; some pools
	// take less.
	MaxPair int
	// Slots reports whether each pair has room for exactly Params.PairBytes. The default has room
	// for YCSB's records.
	Slots bool
	// Limits reads from a pool's header how long keys and values may be. nil: the store bounds only
	// both together.
	Limits func(h node.Header) (Limits, error)
	// Options are those that only this store, or few stores, have. In the Params and Options that
	// the functions above get, options that are not set have their defaults.
	Options []Option
	// Replicas is a text with the numbers of replicas that the store can have.
	Replicas string
	// Room returns how many records of PairBytes a pool's memory has room for, and how much memory
	// each node needs for Records of them. Params.Check must have accepted p. nil: it is not known.
	Room func(p Params) (records, memory uint64)
	// Split reports whether index and data may have different numbers of replicas.
	Split bool
	// Contends reports whether its writers wait for each other's locks, in no order: on the slow
	// networks of package explore operations take longer then.
	Contends bool
	// Scans reports whether its Store is a client.Scanner.
	Scans bool
	// Unmerged: nodes of its trees that deletes left empty are not merged, and their memory is not
	// used for other keys.
	Unmerged bool
	// Baseline reports whether the store exists only to compare others with: hints do not
	// recommend it.
	Baseline bool
	// Cramped returns the options of a pool that begins as small as possible and doubles at most n
	// times, for tests of growing. nil: pools of the store do not grow.
	Cramped func(n int) Values
	// Growth says what it takes that a pool grows, if it can; "": nothing.
	Growth string
	// Limit says what a pool has room for whatever its memory; "": its memory alone limits it.
	Limit string
	// Explored are the options of workers in searches for faults: they make rare paths frequent.
	Explored Values
	// ExploredRecoverer replaces Recoverer in searches for faults: it makes rare paths frequent.
	// nil: Recoverer is used.
	ExploredRecoverer func(f rdma.Configs) cluster.NewRecoverer
}

// Grows reports whether pools of the store can be made so that they grow when they are full.
func (k *Kind) Grows() bool { return k.Cramped != nil }

// Limits are the bytes of the longest key and of the longest value that a pool takes.
type Limits struct {
	Key   int `json:"key_bytes"`
	Value int `json:"value_bytes"`
	Pair  int `json:"pair_bytes,omitempty"` // both together; 0: that is not bounded
}

// Report is what Kind.Check found.
type Report = client.Report

// Use is one purpose that a pool's memory serves, and how much of it.
type Use = client.Use

// Fill says how full a part of a pool is.
type Fill = client.Fill

// ErrUnknown is wrapped when a store's name is not in the table.
var ErrUnknown = errors.New("unknown store")

var kinds = map[string]*Kind{}

// register adds a store. It wraps the functions of the store so that they see options with all
// defaults set, and checked where the function can return an error.
func register(k *Kind) {
	if k.Size == nil || k.Format == nil || k.Open == nil || k.Check == nil || k.Usage == nil {
		panic("store " + k.Name + " lacks Size, Format, Open, Check or Usage")
	}
	size, open := k.Size, k.Open
	k.Size = func(p Params) Params {
		p.Own = k.completed(p.Own, Made)
		return size(p)
	}
	k.Open = func(ep rdma.Endpoint, o Options) (client.Store, error) {
		if err := k.Heeds(o.Own); err != nil {
			return nil, err
		}
		o.Own = k.completed(o.Own, Opened)
		return open(ep, o)
	}
	kinds[k.Name] = k
}

// Names lists the stores, sorted.
func Names() []string { return slices.Sorted(maps.Keys(kinds)) }

// Kinds returns the stores, sorted by name.
func Kinds() (all []*Kind) {
	for _, name := range Names() {
		all = append(all, kinds[name])
	}
	return all
}

// Lookup returns the store of that name, or an error wrapping ErrUnknown that lists the names there
// are.
func Lookup(name string) (*Kind, error) {
	if k := kinds[name]; k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("%w %q (there are: %s)", ErrUnknown, name, strings.Join(Names(), ", "))
}

// opened returns what a store's Open returned, as the interface. On an error the interface is nil,
// which a nil pointer in it would not be.
func opened[S client.Store](s S, err error) (client.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// formats returns a Kind's Format, from a function that computes the parameters of a store's
// pools and one that makes a pool of them. The pool's nodes and memory are those of the fabric.
func formats[P any](store string, size func(Params) (P, uint64, error), make func(rdma.Fabric, P) error,
) func(rdma.Fabric, Params) error {
	return func(f rdma.Fabric, p Params) error {
		p = kinds[store].Size(p)
		p.Nodes, p.Memory = f.Nodes(), f.Size()
		params, _, err := size(p)
		if err != nil {
			return fmt.Errorf("make a %s pool: %w", store, err)
		}
		return make(f, params)
	}
}

// mends returns a Kind's Recoverer, from a function that makes a store's recoverer.
func mends[M cluster.Recoverer](open func(ep rdma.Endpoint) (M, error)) func(rdma.Configs) cluster.NewRecoverer {
	return func(rdma.Configs) cluster.NewRecoverer {
		return func(ep rdma.Endpoint) (cluster.Recoverer, error) {
			m, err := open(ep)
			if err != nil {
				return nil, err
			}
			return m, nil
		}
	}
}
