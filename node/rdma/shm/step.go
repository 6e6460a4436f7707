package shm

import (
	"runtime/debug"
	"sync/atomic"
)

// The word that has a client's process in its lower half has an order to crash in its upper one: the hash of a step's
// name, 0 for none. A life in the slot begins without one. In a pool that other users may change there are
// no orders: any of them could write one.
const orderShift = 32

// stepOrder is FNV-1a of a step's name, and never 0.
func stepOrder(step string) uint32 {
	h := uint32(2166136261)
	for i := range len(step) {
		h = (h ^ uint32(step[i])) * 16777619
	}
	return max(h, 1)
}

// Step implements trace.Stepper: it is where the process of a client that was ordered to crash ends.
func (e *Endpoint) Step(name string) {
	if e.fabric.shared || !e.fabric.faults {
		return
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // as guard, which would allocate
	defer func() {
		if r := recover(); r != nil {
			_ = e.fabric.fault(r) // the next verb tells of it
		}
	}()
	if order := atomic.LoadUint64(&e.slot.pid) >> orderShift; order != 0 && uint32(order) == stepOrder(name) {
		die()
	}
}
