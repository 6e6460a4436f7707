// Package table is where everything of an RCuckoo pool lies, and how it is encoded: the parameters
// in its header, rows and their entries, the hashes, the levels of tables that grow, lock words,
// leases and queues, intents and redos, extents and their marks. It waits for no verb of the
// protocol: it gives addresses, adds ops to batches, and reads what ops have returned.
package table

import (
	"cmp"
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Area is where one part of each of a node's shards lies: the parts of all shards lie one behind
// the other, each bytes apart.
type Area struct{ Base, Each uint64 }

// Of returns the offset of the part that belongs to the index-th shard of a node.
func (a Area) Of(index int) uint64 { return a.Base + uint64(index)*a.Each }

// At returns an address in a copy's part.
func (a Area) At(c node.Replica, off uint64) rdma.Addr { return rdma.At(c.Node, a.Of(c.Index)+off) }

// Layout is where everything of a pool lies. Params alone decide that, so all clients agree. From
// the front of each node:
//
//	header
//	locks     of each of its shards, 8 bytes a word: together, for the NIC's memory
//	leases    8 bytes for each lock word
//	counts    8 bytes: how many slabs were handed out
//	intents   a record for each identity, all of a shard's together
//	redos     a record for each identity
//	claims    the claim lists of each identity: see claims.go
//	growths   of tables that may grow: see levels.go
//	rows      all segments of a shard together; those behind the first get memory when the table
//	          grows
//	slabs     which get memory when they are handed out
//	queues    of clients that wait for locks: the last, so that clients of an older version,
//	          which knows no queues, find all other parts where they were
//
// With replicas each copy of a shard that lies on a node has all of this there, and its role, 8
// bytes, behind the growths.
//
// Locks, leases, counts, growths, the marks of slabs and the next words of queues are changed by
// atomics only, all else by WRITEs only: a word that is changed by both could lose a change. All
// is zero when the pool is made.
type Layout struct {
	Params
	*Form
	Units
	Nodes     int
	reach     reach
	PerNode   int // copies of shards on a node, at most
	Areas     Areas
	Bytes     uint64 // of each node, a multiple of a page
	RedoBytes uint64 // bytes of a client's redo
	lockBits  int    // of a word that are locks
	lockings  int    // locks of a shard, before they share bits
	Placement
}

// Areas are the parts of a pool, in their order on a node.
type Areas struct {
	locks, leases, Counts, intents, Redos, Claims, Growths, Roles, Rows, Slabs, Queues Area
}

// New computes a layout, with the copies where they are in a new pool. Each part begins at
// a multiple of 64 bytes, so that no two parts share a cache line. The error wraps ErrParams.
func New(p Params, nodes int) (*Layout, error) {
	if err := p.validate(nodes); err != nil {
		return nil, err
	}
	p.Replicas, p.Classes = max(p.Replicas, 1), max(p.Classes, 1)
	l := &Layout{Params: p, Nodes: nodes, Form: newForm(p), Units: newUnits(p), reach: newReach(p.F, p.Rows),
		PerNode: p.placesEach(nodes)}
	l.lockBits = cmp.Or(p.LockBits, lockBits)
	l.lockings = (p.Rows + p.RowsPerLock - 1) / p.RowsPerLock
	l.RedoBytes = uint64((RedoHeader + MaxSteps*(RedoStepBytes+l.EntryBytes) + 63) &^ 63)
	end := uint64(node.HeaderBytes)
	put := func(items, each uint64) Area {
		a := Area{end, items * each}
		end += (a.Each*uint64(l.PerNode) + 63) &^ 63
		return a
	}
	l.Areas.locks = put(uint64(p.LockWords), 8)
	l.Areas.leases = put(uint64(p.LockWords), 8)
	l.Areas.Counts = put(1, 8)
	l.Areas.intents = put(uint64(p.Clients), IntentBytes)
	l.Areas.Redos = put(uint64(p.Clients), l.RedoBytes)
	l.Areas.Claims = put(uint64(p.Clients), l.ClaimsBytes())
	l.Areas.Growths = put(uint64(min(p.Levels, 1)), growthBytes)
	if p.Replicas > 1 {
		l.Areas.Roles = put(1, 8)
	}
	l.Areas.Rows = put(uint64(p.Rows)<<p.Levels, uint64(l.RowBytes))
	l.Areas.Slabs = put(uint64(p.Slabs), l.SlabBytes)
	l.Areas.Queues = put(uint64(p.Tickets), queueBytes)
	l.Bytes = (end + page - 1) / page * page
	if l.Bytes >= rdma.MaxOffset {
		return nil, fmt.Errorf("%w: %d bytes a node", ErrParams, l.Bytes)
	}
	l.placeOriginals()
	return l, nil
}

// At returns an address in the leading copy of a shard.
func (l *Layout) At(a Area, shard int, off uint64) rdma.Addr { return a.At(l.Leads[shard], off) }

// LockAt returns the address of a lock word at the leader.
func (l *Layout) LockAt(shard, word int) rdma.Addr { return l.At(l.Areas.locks, shard, 8*uint64(word)) }

// LeaseAt returns the address of the repair lease of a lock word, at the leader.
func (l *Layout) LeaseAt(shard, word int) rdma.Addr {
	return l.At(l.Areas.leases, shard, 8*uint64(word))
}

// IntentAt returns the address of a client's intent at the leader. Identities count from 1.
func (l *Layout) IntentAt(shard int, c rdma.ClientID) rdma.Addr {
	return l.At(l.Areas.intents, shard, uint64(c-1)*IntentBytes)
}

// RedoAt returns the address of a client's redo on one copy of a shard.
func (l *Layout) RedoAt(at node.Replica, c rdma.ClientID) rdma.Addr {
	return l.Areas.Redos.At(at, uint64(c-1)*l.RedoBytes)
}

// ClaimsAt returns the address of a client's record of its claims of a class, at the leader.
func (l *Layout) ClaimsAt(shard int, c rdma.ClientID, class int) rdma.Addr {
	return l.At(l.Areas.Claims, shard, uint64(c-1)*l.ClaimsBytes()+uint64(class)*claimBytes)
}

// RowAt is a row on one copy of its shard.
func (l *Layout) RowAt(at node.Replica, n uint32) rdma.Addr {
	return l.Areas.Rows.At(at, uint64(n)*uint64(l.RowBytes))
}

// LockOf returns the word of a row's lock and the bit of that word. All rows of one number have
// the same lock. When there are more locks than bits, several locks share a bit (section 3.4.2).
func (l *Layout) LockOf(n uint32) (word int, bit uint) {
	p := int(l.Number(n)) / l.RowsPerLock % (l.lockBits * l.LockWords)
	return p / l.lockBits, uint(p % l.lockBits)
}

// LockedWith returns the rows of a row's segment that have the same lock: from, and up to but
// without, to. Rows of other locks that share the bit are not among them.
func (l *Layout) LockedWith(n uint32) (from, to uint32) {
	number := l.Number(n)
	from = n - number%uint32(l.RowsPerLock)
	return from, uint32(min(int(from)+l.RowsPerLock, int(n-number)+l.Rows))
}
