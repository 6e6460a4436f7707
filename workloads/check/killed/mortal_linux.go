package killed

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// mostVerbs bounds the verbs until an order to die is obeyed. They are counted within operations,
// so that death comes at any verb of one: an UPDATE posts about ten, and one that splits or
// rehashes some hundreds.
const mostVerbs = 32

// rareVerbs is as mostVerbs, for one order in rareShare: it reaches the verbs of rare and long
// operations.
const (
	rareVerbs = 1024
	rareShare = 8
)

// mortal is a worker's endpoint. It ends its process by SIGKILL when it was ordered to, between two
// verbs. It also notes how long the machine kept the worker itself waiting: the kernel counts no
// wait of a thread whose processor another machine of the same host uses meanwhile.
type mortal struct {
	rdma.Endpoint
	ledger *ledger
	order  *atomic.Uint64 // at which verb of an operation from now, counted from 1; 0: none
	busy   *atomic.Uint64 // not 0: an operation is under way
	died   *atomic.Uint64 // when it killed its process
}

// postTakes is more than a batch takes in shared memory, of some hundred KiB at most: what is
// beyond it is a delay.
const postTakes = 200 * time.Microsecond

// Sleep notes by how much it was longer than asked.
func (m mortal) Sleep(d time.Duration) {
	due := realtime.Now() + d
	m.Endpoint.Sleep(d)
	m.ledger.delayed(due, realtime.Now())
}

// Post notes what it took beyond postTakes.
func (m mortal) Post(b *rdma.Batch) error {
	due := realtime.Now() + postTakes
	err := m.post(b)
	m.ledger.delayed(due, realtime.Now())
	return err
}

// post runs the verbs of a batch that come before the end. In shared memory a posted verb is
// complete.
func (m mortal) post(b *rdma.Batch) error {
	left := m.order.Load()
	if left == 0 || m.busy.Load() == 0 {
		return m.Endpoint.Post(b)
	}
	n := uint64(b.Len())
	if left > n {
		m.order.Store(left - n)
		return m.Endpoint.Post(b)
	}
	part := m.Batch()
	for i := range int(left) - 1 {
		repeat(part, b.Op(i))
	}
	if part.Len() > 0 {
		_ = m.Endpoint.Post(part) // the worker does not live to see whether it failed
	}
	m.died.Store(uint64(realtime.Now()))
	_ = unix.Kill(unix.Getpid(), unix.SIGKILL)
	time.Sleep(time.Hour) // the signal is on its way
	return nil
}

// repeat adds a verb as it stands in another batch.
func repeat(b *rdma.Batch, op *rdma.Op) {
	switch op.Verb {
	case rdma.Read:
		b.ReadInto(op.Addr, op.Buf)
	case rdma.Write:
		b.Write(op.Addr, op.Buf)
	case rdma.CompareSwap:
		b.CompareSwap(op.Addr, op.Expect, op.Value)
	case rdma.MaskedCompareSwap:
		b.MaskedCompareSwap(op.Addr, op.Expect, op.CompareMask, op.Value, op.SwapMask)
	case rdma.FetchAdd:
		b.FetchAdd(op.Addr, op.Value)
	default:
		panic(fmt.Sprintf("killed: a store in shared memory posted verb %v", op.Verb))
	}
}
