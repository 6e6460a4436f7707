package table

import (
	"github.com/farkv/farkv/node/rdma"
)

// LockRepair is the bit of a lock word by which a repair excludes others: no client takes a lock
// in the word while the bit is set.
const LockRepair = 1 << lockBits

// A lease says which client repairs a lock word. It is changed by CAS only.
//
//	set      bit 63
//	client   16 bits
//	counter  47 bits: grows with each change, so no value repeats; the holder's heartbeats are
//	         changes, too
const (
	leaseSet   = 1 << 63
	leaseShift = 47
	leaseCount = 1<<leaseShift - 1
)

// LeaseHolder returns the client that has a lease; 0: none.
func LeaseHolder(lease uint64) rdma.ClientID {
	if lease&leaseSet == 0 {
		return 0
	}
	return rdma.ClientID(lease >> leaseShift)
}

// LeaseNext returns the value of a lease after its next change, with a client as its holder, or
// none (0).
func LeaseNext(lease uint64, c rdma.ClientID) uint64 {
	n := (lease + 1) & leaseCount
	if c != 0 {
		n |= leaseSet | uint64(c)<<leaseShift
	}
	return n
}

// LostLease stands for a lease that another client has changed. It is no lease's value: no
// counter gets there in a pool's life.
const LostLease = leaseCount

// A queue of a lock has two words:
//
//	next     the number of the next ticket; changed by FAA only
//	serving  one more than the number of the last client that had its turn; changed by WRITEs only
const (
	// QueueServing is the offset of serving in a queue.
	QueueServing = 8
	queueBytes   = 16

	// mostTickets bounds Params.Tickets by default: 16 KiB.
	mostTickets = 1024
)

// QueueAt is the queue of a lock.
func (l *Layout) QueueAt(shard int, word uint32, bit int) rdma.Addr {
	n := Spread(uint64(word)<<6|uint64(bit)) % uint64(l.Tickets)
	return l.At(l.Areas.Queues, shard, n*queueBytes)
}
