package control

import "slices"

// KnowsAlive reports whether a node named the process as alive since the worker joined.
func (w *Worker) KnowsAlive(process string) bool { return w.pool.heardSince(w.saw.asked)[process] }

// SaidAlive reports whether a node named the process as alive when it was asked last.
func (ctl *Control) SaidAlive(node int, process string) bool {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	return slices.Contains(ctl.attended[node].names, process)
}
