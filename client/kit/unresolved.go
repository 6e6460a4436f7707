package kit

// Unresolved are the operations of a worker of which it does not know whether they took effect, in
// the order in which they ended. An operation is unresolved if its verbs may still land (a wait
// timed out), or if they failed in a way that does not tell whether they landed (a node went down,
// or the view changed). Its error wraps client.ErrUncertain. Until it is resolved the worker must
// not reuse what the operation named, and others may wait for it.
//
// An operation is resolved when nothing of it is in flight any more, because the batch is finished
// or another epoch has begun, and the pool was read after that. A worker that closes with an
// unresolved operation does not give its identity back: see client.Leave.
type Unresolved[T any] []T

// Keep adds an operation.
func (u *Unresolved[T]) Keep(op T) { *u = append(*u, op) }

// Resolve tries all of them in their order, and removes those that try reports as resolved.
func (u *Unresolved[T]) Resolve(try func(op *T) (resolved bool)) {
	kept := (*u)[:0]
	for i := range *u {
		if op := &(*u)[i]; !try(op) {
			kept = append(kept, *op)
		}
	}
	clear((*u)[len(kept):])
	*u = kept
}
