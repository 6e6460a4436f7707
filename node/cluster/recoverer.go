// Package cluster keeps a pool whole. It has the election of the master, the detection of dead
// nodes and clients, and the changes of the pool's view. What has to be mended then is the store's
// business: see Recoverer.
package cluster

import "github.com/farkv/farkv/node/rdma"

// Recoverer is a store's part in mending its pool. It belongs to one keeper and uses that keeper's
// endpoint. Each method may be called again, by another process, after a crash in the middle of it.
// Each returns an error that wraps rdma.ErrStale if another master has changed the view meanwhile,
// and one that wraps rdma.ErrNodeDown if a node died that is still in the view.
type Recoverer interface {
	// Spares lists the nodes that may replace a dead one.
	Spares() []int
	// Mend makes all replicas equal. The view is busy, the endpoint has joined it, and no verb of
	// an earlier epoch lands any more.
	Mend(v rdma.View) error
	// Restore copies everything that the given node held from the other replicas to the spare. The
	// view is busy, and Mend has returned. The spare may hold what an interrupted attempt left.
	// Afterwards the keeper makes it the node's stand-in.
	Restore(v rdma.View, node, spare int) error
	// Recover completes or undoes the unfinished operations of a client, and passes on what it
	// owned. The client is fenced off. The view is idle, and other clients go on.
	Recover(v rdma.View, c rdma.ClientID) error
	// Sweep frees memory that no client can reach any more and that recovery could not assign to an
	// owner. The view is idle, and clients go on. The sweep of a QuorumRecoverer is called under a
	// busy view instead.
	Sweep(v rdma.View) error
}

// QuorumRecoverer is the Recoverer of a store that stays available with the majorities that are
// left when nodes die: nothing has to be mended, and a busy view stops no client. So the keeper
// begins no epoch for the death of a node: that would cost every client a fence. It begins an
// epoch in three cases only:
//   - for a sweep, since memory that nothing refers to is free only when no older verb can land;
//   - for a dead client that cannot be fenced off otherwise, because a node does not answer;
//   - as a fence and no more, if clients need one: the view is idle all the time.
//
// In the first two cases the keeper expels the nodes that are dead, and calls Mend and then Sweep,
// both under the busy view.
type QuorumRecoverer interface {
	Recoverer
	// Need returns what clients ask for, although no client or node has died. It is called in
	// each tick of an idle view in which nothing else is due.
	Need(v rdma.View) (Need, error)
}

// Need is what the pool of a QuorumRecoverer needs.
type Need uint8

const (
	// NeedNothing is the zero Need.
	NeedNothing Need = iota
	// NeedFence is a new epoch without a sweep.
	NeedFence
	// NeedSweep is a new epoch in which the pool is swept.
	NeedSweep
)

// Piecewise is the Recoverer of a store with a Sweep that does a piece of the work at a time. The
// keeper calls it again while there is more, and does more urgent work between two pieces.
type Piecewise interface {
	Recoverer
	// Unswept reports whether there is something to sweep: what a piece has left, or an earlier
	// tenure that did not complete its sweep, or did not begin it. It is called behind each
	// Sweep, and when a tenure has nothing else to do. The view is idle.
	Unswept(v rdma.View) (bool, error)
}

// Attendant is the Recoverer of a store with work of its own for the master, such as changing a
// configuration when servers die. Nodes that the view calls gone serve nothing any more, and no
// verb of a server beside them can land.
type Attendant interface {
	Recoverer
	// Attend does one thing that is due under an idle view. It is called in each tick, before
	// vacancies are filled and clients are recovered, and waits for a part of a lease at most. more
	// asks for another call at once.
	Attend(v rdma.View) (more bool, err error)
	// Waits reports whether what the last Attend began is continued elsewhere, so that Once must
	// attend again.
	Waits() bool
}

// Grower is the Recoverer of a store with a part that grows only while no client writes: Mend
// makes it grow, as much as clients want and for about as long as it takes to mend the pool.
type Grower interface {
	Recoverer
	// Wants reports whether clients want the store to grow, and it can. It is called in each tick
	// of an idle view; after a Mend that made nothing grow, only after a rest.
	Wants(v rdma.View) (bool, error)
	// Growth describes what the last Mend has made grow, as a text for users; "": nothing.
	Growth() string
}

// Accuser is an Attendant that can find nodes dead although they answer READs, since no server runs
// there any more. The keeper expels them like nodes that do not answer.
type Accuser interface {
	Attendant
	// Hung returns such nodes. It is called in each tick of an idle view, before Attend.
	Hung(v rdma.View) []int
}

// Configurer is the endpoint that a NewRecoverer gets. SwapConfig replaces the store's
// configuration in the master's tenure: see rdma.Configs. No other process replaces it while the
// tenure lasts. what describes the change for an Event; "": there is no event.
type Configurer interface {
	SwapConfig(version uint64, data []byte, what string) (bool, error)
}

// Reporter is a Recoverer that describes, in lines, what its last Recover did and how long each
// step took.
type Reporter interface{ Report() string }
