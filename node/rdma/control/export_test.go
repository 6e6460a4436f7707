package control

import (
	"slices"

	"github.com/farkv/farkv/node/rdma/transport"
)

// KnowsAlive reports whether a node named the process as alive since the worker joined.
func (w *Worker) KnowsAlive(process string) bool { return w.pool.heardSince(w.saw.asked)[process] }

// SaidAlive reports whether a node named the process as alive when it was asked last.
func (ctl *Control) SaidAlive(node int, process string) bool {
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	return slices.Contains(ctl.attended[node].names, process)
}

// Mail is what the pool does with what a node says unasked.
func (p *Pool) Mail(node int, h transport.Header, body []byte) error { return p.mail(node, h, body) }
