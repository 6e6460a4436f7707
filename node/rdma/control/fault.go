package control

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Fault is what an administrator breaks at a memory node on purpose, for a time. The node ends it
// by itself, whatever became of the administrator. It does nothing that a slow machine or a network
// that is cut could not do: verbs are late, or wait until it is over. So what a pool outlives there
// it outlives here.
//
// A node suffers one at a time. It keeps none on storage: a node that is started anew is whole.
// Administrators' inspections, and their order that ends a fault, come through all the same.
type Fault struct {
	// FaultVersion of the build that made it: a node refuses what it may not understand
	Version int    `json:"version"`
	ID      string `json:"id"` // ends this fault and no other one
	// Slow is added to each batch of verbs that comes over a connection. Those that come meanwhile
	// wait their turn.
	Slow    time.Duration `json:"slow,omitempty"`
	Clients bool          `json:"clients,omitempty"` // no client reaches the node
	Peers   []int         `json:"peers,omitempty"`   // nodes of the pool with which it exchanges no leases
	For     time.Duration `json:"for"`               // what is left of it; 0 ends it
}

const (
	// FaultVersion is that of Fault which this build knows.
	FaultVersion = 1
	// MaxFault bounds how long a Fault lasts: a mistake is over by itself.
	MaxFault = 10 * time.Minute
	// MaxSlow bounds how much longer verbs take: with more the node counts as dead, which a cut
	// shows better.
	MaxSlow = transport.DeadAfter / 2
)

// String says what is broken.
func (f *Fault) String() string {
	var all []string
	if f.Slow > 0 {
		all = append(all, fmt.Sprintf("verbs take %v longer", f.Slow))
	}
	if f.Clients {
		all = append(all, "cut off from clients")
	}
	if len(f.Peers) > 0 {
		all = append(all, "cut off from "+NodesText(f.Peers))
	}
	return strings.Join(all, ", ")
}

// NodesText names nodes, for people.
func NodesText(all []int) string {
	word := "node "
	if len(all) > 1 {
		word = "nodes "
	}
	return word + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(all)), ", "), "[]")
}

// Break has a node of a pool suffer a fault, or ends that of the same ID. Errors wrap
// rdma.ErrAccess for a node or a fault that there cannot be, and without the full token,
// rdma.ErrHeld while another fault lasts, rdma.ErrNotSupported where the node, or what its verbs go
// over, does not know such faults, rdma.ErrNodeDown when it does not answer. It is asked once, over
// a connection of its own, which says that it is an administrator's: the node lets it in where it
// holds clients back, and beyond the number of connections that it takes. When the answer is lost
// the fault may have begun, and ends by its own time.
func Break(ctx context.Context, o Options, node int, f Fault) error {
	o.Security.Admin = true
	r, _, err := RecordOf(o)
	if err != nil {
		return fmt.Errorf("break node %d: %w", node, err)
	}
	if node < 0 || node >= len(r.Addresses) {
		return fmt.Errorf("break node %d: the pool has nodes 0 to %d: %w", node, len(r.Addresses)-1, rdma.ErrAccess)
	}
	f.Version = FaultVersion
	h := transport.Hello{Purpose: transport.ForControl, Process: transport.NewID(), PID: transport.PID, Pool: r.ID,
		Node: node}
	if _, err := Ask(ctx, r.Addresses[node], o.Security, h, &Message{Do: DoFault, Pool: r.ID, Fault: &f}); err != nil {
		return fmt.Errorf("break node %d: %w", node, err)
	}
	return nil
}
