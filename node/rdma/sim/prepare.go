package sim

import "github.com/farkv/farkv/node/rdma"

// Endpoint returns the worker's own endpoint. Outside Run its verbs execute at once, so that a
// client can be prepared in no time: its store opened, its caches filled.
func (w *Worker) Endpoint() rdma.Endpoint { return w.ep }
