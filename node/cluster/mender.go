// Package cluster keeps a pool whole: it has the master's election, the detection of dead nodes and
// clients, and the changes of the pool's view. What has to be mended then is the store's business:
// see Mender.
package cluster

import "github.com/farkv/farkv/node/rdma"

// Mender is what a store knows about mending its pools. It belongs to one keeper and uses that
// one's endpoint. Every method may be called again after a crash in its midst, by another process.
// Each returns an error wrapping rdma.ErrStale when another master has changed the view meanwhile,
// and rdma.ErrNodeDown when a node died that the view still has.
type Mender interface {
	// Spares lists the nodes that may take a dead node's place.
	Spares() []int
	// Mend makes all replicas equal. The view is busy, no verb of an earlier epoch lands any more, and
	// the endpoint has joined.
	Mend(v rdma.View) error
	// Restore copies to the spare all that the given node held, from the other replicas, under a busy
	// view, behind Mend. The spare may hold what an attempt that was cut off left. The keeper makes it
	// the node's stand-in afterwards.
	Restore(v rdma.View, node, spare int) error
	// Recover finishes or takes back what a client left undone and passes on what it owned. The client
	// is fenced off; others go on. The view is not busy.
	Recover(v rdma.View, c rdma.ClientID) error
	// Sweep frees memory that no client can reach any more, and to which recovery could assign no
	// owner. Clients go on. The view is not busy.
	Sweep(v rdma.View) error
}

// Enduring is the Mender of a store whose clients go on when nodes die, with the majorities that
// are left: nothing has to be mended, and a busy view stops no client. So the keeper begins no
// epoch for the death of a node: that would cost every client a fence. It begins one in three cases
// only. One is a sweep, since memory that nothing refers to is free only when no older verb can
// land. Another is a dead client that cannot be fenced off otherwise, because a node does not
// answer. Nodes that are dead then are expelled on the way, and in each of these epochs the keeper
// calls Mend and, behind it, Sweep, both under the busy view. The third is an epoch that is nothing
// but a fence: the view is idle all the time.
type Enduring interface {
	Mender
	// Need returns what clients ask for, though no client or node died. It is called in every tick of an
	// idle view.
	Need(v rdma.View) (Need, error)
}

// Need is what a pool needs whose clients go on when nodes die.
type Need uint8

const (
	// NeedNothing is the zero Need.
	NeedNothing Need = iota
	// NeedFence is a new epoch without a sweep.
	NeedFence
	// NeedSweep is a new epoch in which the pool is swept.
	NeedSweep
)

// Piecewise is the Mender of a store whose Sweep does a piece of the work at a time. The keeper calls
// it again while there is more, and does between two pieces what is more urgent.
type Piecewise interface {
	Mender
	// Unswept reports whether there is something to sweep: what is left behind a piece, or what an
	// earlier tenure left, which began a sweep or did not come to it. It is asked behind each Sweep, and
	// when a tenure has nothing else to do. The view is not busy.
	Unswept(v rdma.View) (bool, error)
}

// Attendant is the Mender of a store whose master has work of its own, such as a configuration to
// change when servers die. The nodes that the view calls gone serve nothing any more, and no verb
// of what ran beside them can land.
type Attendant interface {
	Mender
	// Attend does one thing of what is due under an idle view. It is called in every tick, before
	// vacancies are filled and clients recovered, and waits for a part of a lease at most. More: it is
	// to be called again at once.
	Attend(v rdma.View) (more bool, err error)
	// Waits reports whether what the last Attend began goes on elsewhere, so that Once attends again.
	Waits() bool
}

// Grower is the Mender of a store with a part that grows only while no client writes: Mend makes it
// grow, as much as clients want and for about as long as it takes to mend the pool.
type Grower interface {
	Mender
	// Wants reports whether clients want it to grow, and it can. It is asked in every tick of an idle
	// view. Behind a Mend that made nothing grow it is asked later.
	Wants(v rdma.View) (bool, error)
	// Growth says, for people, what the last Mend has made grow; "": nothing.
	Growth() string
}

// Accuser is an Attendant that finds nodes dead which answer READs, since nothing serves there any
// more. They are expelled like those that answer none.
type Accuser interface {
	Attendant
	// Hung returns such nodes. It is asked in every tick of an idle view, before Attend.
	Hung(v rdma.View) []int
}

// Configurer is the endpoint that a NewMender gets. It replaces the store's configuration in the
// master's tenure, as rdma.Configs says: while that lasts no other process does. What, for people,
// is what the configuration changes; "": it is no Event.
type Configurer interface {
	SwapConfig(version uint64, data []byte, what string) (bool, error)
}

// Reporter is a Mender that tells, in lines, what its last Recover did and how long each step of it
// took.
type Reporter interface{ Report() string }
