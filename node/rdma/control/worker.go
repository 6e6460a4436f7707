package control

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Worker is what one worker has of a pool beside its verbs: an identity, calls to the nodes'
// procedures, a mailbox, rings, and connections from device to device. A fabric adds the verbs. It
// is not safe for concurrent use: of what changes, other goroutines touch Waits and the mailbox
// only.
type Worker struct {
	rdma.Base
	// Identity and rights never change. rights has what each frame of the worker claims, but for
	// the key, the epoch and the count of released buffers, which Claim fills in.
	pool     *Pool
	Identity rdma.Client
	// joined is claimed in each frame. Nodes refuse it once a later epoch is fenced. It only
	// changes in Join: so verbs that were posted before keep the epoch that they were posted in.
	joined uint64
	saw    listing // with that view
	// Lost is never reset: as a queue pair in error, it ends with the worker.
	Lost   []error // by node: it strayed there, and the connection is down
	Flying []int   // frames of the fabric's verbs in flight, by node
	rights transport.Rights

	// Waits is how links rouse the worker, and where they leave what came in for it.
	Waits   *transport.Waiter
	sleeper realtime.Sleeper
	rand    *rand.Rand
	closed  bool
	box     *mailbox // nil: it has none
	rings   []*ring
	calls   []*called // to be used again
}

// Client returns the worker's identity.
func (w *Worker) Client() rdma.ClientID { return w.Identity.ID }

// Life tells the worker from others that had its identity.
func (w *Worker) Life() uint64 { return w.Identity.Life }

// Reuse takes one of a list of spare objects, or a new one. The object is as its last user left it.
func Reuse[T any](spares *[]*T) *T {
	n := len(*spares)
	if n == 0 {
		return new(T)
	}
	x := (*spares)[n-1]
	*spares = (*spares)[:n-1]
	return x
}

// Link is the worker's connection to a node for verbs.
func (w *Worker) Link(node int) *transport.Link { return w.pool.links[node].verbs }

// LeaveToOthers has what is in flight read while the worker does not wait. A worker that waits
// reads for others as well. So where it stops with answers on their way, or with an open mailbox, a
// goroutine of the link has to go on.
func (w *Worker) LeaveToOthers() {
	for node, l := range w.pool.links[:len(w.Lost)] {
		if l.verbs.Awaited() || w.box.isAt(node) {
			l.verbs.ReadAside()
		}
	}
}

// Now is the time since the machine started, the same in all its processes.
func (w *Worker) Now() time.Duration { return realtime.Now() }

// Sleep pauses the worker. It ends early when the fabric closes, so that tasks see that they have
// to stop. What came in meanwhile is complete when it returns.
func (w *Worker) Sleep(d time.Duration) {
	w.LeaveToOthers()
	w.sleeper.Sleep(d, w.pool.stop)
	w.Waits.Collect()
}

// Rand is the worker's own generator.
func (w *Worker) Rand() *rand.Rand { return w.rand }

// Join makes the worker a member of the pool's current view. What it posts from then on claims the
// view's epoch; what is in flight keeps the one that it was posted in. After an error it is a
// member of the last one still. The error wraps rdma.ErrRevoked when its life is over, and
// rdma.ErrUnreachable when the registry cannot be read. A view that changes behind the read is no
// harm: nodes refuse the worker's verbs once the next epoch is fenced, and it joins again.
func (w *Worker) Join() (rdma.View, error) {
	if w.closed || w.pool.closing.Load() {
		return rdma.View{}, fmt.Errorf("join the view as client %d: %w", w.Identity.ID, rdma.ErrClosed)
	}
	if w.Identity.ID == 0 { // it may only read, and is in no list
		v, err := w.pool.ReadView()
		if err != nil {
			return rdma.View{}, fmt.Errorf("join the view: %w", err)
		}
		w.joined = v.Epoch
		return v, nil
	}
	v, clients, err := w.pool.look()
	if err != nil {
		return rdma.View{}, fmt.Errorf("join the view: %w", err)
	}
	// A client that was fenced off before an epoch began does not join it: see
	// membership.Registry.succeed.
	if membership.Fenced(w.Identity, clients.holders) {
		return rdma.View{}, fmt.Errorf("join the view: client %d: %w", w.Identity.ID, rdma.ErrRevoked)
	}
	w.joined, w.saw = v.Epoch, clients
	return v, nil
}

// Close gives the identity back, unless it was fenced off: then what it owned waits for recovery,
// and Forget. Verbs in flight may land later. The identity is given back last, behind the mailbox
// and the rings, which are this life's. For each node that does not answer it waits listenPatience
// for the mailbox, and up to twice ringPatience for each ring.
func (w *Worker) Close() error {
	if w.closed {
		return nil
	}
	if w.box != nil {
		_ = w.box.Close()
	}
	for _, r := range slices.Clone(w.rings) {
		_ = r.Close() // else it ends with the connection
	}
	w.closed = true
	return w.pool.leave(w)
}

// Refusal is why a node refused what a client of an epoch asked for.
func Refusal(st transport.Status, node int, c rdma.ClientID, epoch uint64) error {
	switch st {
	case transport.StatusRevoked:
		return fmt.Errorf("client %d: %w", c, rdma.ErrRevoked)
	case transport.StatusStale:
		return fmt.Errorf("client %d of epoch %d: %w", c, epoch, rdma.ErrStale)
	case transport.StatusAccess:
		return fmt.Errorf("refused by node %d: %w", node, rdma.ErrAccess)
	}
	return fmt.Errorf("node %d: %w", node, st.Err())
}

// Claim appends what the worker may do at a node: the rights in front of each frame. The caller
// holds the link's lock, under which the key is that of the connection that will carry the frame. A
// frame with the key of an earlier connection is refused where the node has the pool anew since.
func (w *Worker) Claim(out []byte, node int) []byte {
	r := w.rights
	r.Key, r.Epoch = w.pool.links[node].verbs.Key.Load(), w.joined
	if w.box != nil {
		r.Released = w.box.tell(node)
	}
	return r.Append(out)
}
