package shm

import (
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
)

// The word that has a client's process in its lower half has an order to crash in its upper one:
// the hash of a step's name, 0 for none. A life in the slot begins without one. In a pool that
// other users may change there are no orders: any of them could write one.
const orderShift = 32

// stepOrder is FNV-1a of a step's name, and never 0. Two names may have one hash. Then an order
// for one of them is obeyed at the other.
func stepOrder(step rdma.Step) uint32 {
	h := uint32(2166136261)
	for i := range len(step) {
		h = (h ^ uint32(step[i])) * 16777619
	}
	return max(h, 1)
}

// crashAt ends the process of a client that was ordered to crash at a step, which it is about to
// post. Its caller guards it. It is called before enter: the batch has no effect, and the busy
// word is even. The order is written by CrashClient of another process, at any time: a step that
// is posted while it is written may still pass, and the next one of that name does not.
func (e *Endpoint) crashAt(step rdma.Step) {
	if step == "" || !e.fabric.faults || e.fabric.shared {
		return
	}
	if order := atomic.LoadUint64(&e.slot.pid) >> orderShift; order != 0 && uint32(order) == stepOrder(step) {
		die()
	}
}
