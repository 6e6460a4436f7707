package table

import (
	"github.com/farkv/farkv/node/rdma"
)

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
