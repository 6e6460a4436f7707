// Package telemetry is what the processes of a pool tell of themselves: figures of the processes
// that use it, counters of its memory nodes, and events. A Sample is a look at all of it; monitors
// draw samples, recordings keep them.
package telemetry

import (
	"time"

	"github.com/farkv/farkv/node/pmem"
)

// Kind is a kind of operation of a store.
type Kind uint8

// The kinds of operations.
const (
	Get Kind = iota
	Update
	Insert
	Delete
	Scan
	Kinds // how many there are
)

var kindNames = [Kinds]string{"get", "update", "insert", "delete", "scan"}

func (k Kind) String() string { return kindNames[k] }

// A Sample is a look at a pool. Counts are totals since their process began: rates are differences
// of two samples. What the look could not find out is the zero value, and said so in Problem.
type Sample struct {
	At      time.Time `json:"at"` // by the clock of the process that looked
	Pool    string    `json:"pool"`
	Store   string    `json:"store"`
	Virtual bool      `json:"virtual,omitempty"` // the run is one of virtual time: so is At
	// Problem says why the pool, or a part of this, cannot be seen now; what could be seen is as of
	// At.
	Problem string `json:"problem,omitempty"`

	Epoch  uint64 `json:"epoch"`            // of the view
	Busy   bool   `json:"busy,omitempty"`   // replicas are being mended
	Whole  bool   `json:"whole"`            // every node, or its stand-in, is up, and replicas are equal
	Master int    `json:"master,omitempty"` // the client that is; 0: none is known
	// MayDie is how many more nodes may die; negative: not known. Spares are nodes that can take a
	// place.
	MayDie int  `json:"may_die"`
	Spares int  `json:"spares,omitempty"`
	Lost   bool `json:"lost,omitempty"` // data that cannot be had, as it stands

	Nodes     []Node    `json:"nodes"`
	Clients   []Client  `json:"clients,omitempty"`
	Processes []Process `json:"processes,omitempty"`
	More      int       `json:"more,omitempty"` // processes beyond those that have room for a record
	Fill      []Fill    `json:"fill,omitempty"`
	Memory    []Use     `json:"memory,omitempty"`
	// Events are those that came since the sample before, oldest first; of a first sample all that
	// are kept.
	Events []Event `json:"events,omitempty"`
}

// Fill is how full a part of the pool is, such as "index slots".
type Fill struct {
	Of   string `json:"of"`
	Used uint64 `json:"used"`
	All  uint64 `json:"all"`
}

// Use is a purpose that memory serves, with the bytes of all replicas.
type Use struct {
	Purpose string `json:"purpose"`
	Count   uint64 `json:"count"`
	Bytes   uint64 `json:"bytes"`
}

// A Node is a memory node.
type Node struct {
	ID      int    `json:"id"`
	Address string `json:"address,omitempty"` // of one that is a process
	Role    string `json:"role"`              // "member", "spare", "witness" or "gone"
	Up      bool   `json:"up"`
	// Replaces is the node that this one replaced, plus one; 0: it replaced none.
	Replaces int           `json:"stands_for,omitempty"`
	Lease    time.Duration `json:"lease,omitempty"` // for which it may serve yet; 0: it needs none
	Bytes    uint64        `json:"bytes"`
	// Counts are those of verbs that the node's process executed, where it is one.
	Counts  *NodeCounts `json:"counts,omitempty"`
	Problem string      `json:"problem,omitempty"` // why Counts are missing
	PMem    *PMem       `json:"pmem,omitempty"`    // nil: nothing is known of it
	Server  []Counter   `json:"server,omitempty"`  // of the store's server beside the node; nil: there is none
}

// NodeCounts are verbs and bytes at a memory node.
type NodeCounts struct {
	Node       int    `json:"node"`
	Reads      uint64 `json:"reads"`
	Writes     uint64 `json:"writes"`
	Atomics    uint64 `json:"atomics"`
	Calls      uint64 `json:"calls,omitempty"`
	BytesRead  uint64 `json:"bytes_read"`
	BytesWrote uint64 `json:"bytes_wrote"`
	Doorbells  uint64 `json:"doorbells,omitempty"` // clients count them, nodes do not
}

// PMem is what a memory node's persistent memory counted, or why that is not known.
type PMem struct {
	DIMMs   []DIMM `json:"dimms,omitempty"`
	Problem string `json:"problem,omitempty"`
	Model   bool   `json:"model,omitempty"` // modules that are not there: a model counts what they would
}

// DIMM holds the counters of one persistent-memory module.
type DIMM = pmem.DIMM

// A Client is an identity of the pool in use.
type Client struct {
	ID    int    `json:"id"`
	Name  string `json:"name"`
	PID   int    `json:"pid,omitempty"`
	State string `json:"state"` // "live", "dead" (waits for recovery) or "fenced"
}

// A Process is a process that uses the pool, as its record tells.
type Process struct {
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Life    uint64    `json:"life"` // tells it from others that had its host and PID
	Name    string    `json:"name"` // of its program or database
	Began   time.Time `json:"began"`
	At      time.Time `json:"at"` // when it told this, by its own clock
	Workers int       `json:"workers"`
	// Oldest is the age of the operation that runs longest; 0: none runs.
	Oldest time.Duration `json:"oldest,omitempty"`

	Ops   [Kinds]Ops   `json:"ops"`
	Nodes []NodeCounts `json:"nodes,omitempty"`
	Calls uint64       `json:"calls,omitempty"` // two-sided ones
	// Own are the store's own counters, in its order and named as in its paper.
	Own []Counter `json:"own,omitempty"`
}

// Ops are the operations of one kind.
type Ops struct {
	OK      uint64 `json:"ok"`                // with an answer that is part of the contract, such as "not found", too
	Failed  uint64 `json:"failed,omitempty"`  // without effect
	Unknown uint64 `json:"unknown,omitempty"` // writes of unknown outcome
	Trips   uint64 `json:"trips,omitempty"`   // of those in OK
	// Latency is that of those in OK; nil: none ended.
	Latency *Histogram `json:"latency,omitempty"`
}

// A Counter is a count that a store keeps of itself.
type Counter struct {
	Name  string `json:"name"`
	Count uint64 `json:"count"`
}

// An Event is something that happened to the pool.
type Event struct {
	At time.Time `json:"at"` // by the clock of the process that tells it
	// such as "expelled": see cluster.What; "broken": a monitor or farkv crash did
	What   string        `json:"what"`
	Tenure uint64        `json:"tenure,omitempty"` // of the master that tells it
	Epoch  uint64        `json:"epoch,omitempty"`  // of the view
	Node   int           `json:"node"`             // negative: it is about none
	Client int           `json:"client,omitempty"` // 0: it is about none
	Took   time.Duration `json:"took,omitempty"`
	Text   string        `json:"text"` // a line for people
}
