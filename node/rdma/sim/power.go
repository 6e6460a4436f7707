package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Survivors decide what a loss of power leaves of one word if its last writes were not durable: the
// first of its writes, as many as it returns, from none to all. The word is the i-th of n such
// words of the node, in the order of their addresses.
type Survivors func(i, n, writes int) int

// AllSurvive leaves all writes, durable or not.
func AllSurvive(_, _, writes int) int { return writes }

// NoneSurvive leaves what is durable alone.
func NoneSurvive(int, int, int) int { return 0 }

// OneSurvives leaves what is durable, and the i-th word.
func OneSurvives(word int) Survivors {
	return func(i, _, writes int) int {
		if i == word {
			return writes
		}
		return 0
	}
}

// AnySurvive draws from a seed what is left of each word. It is drawn as it is asked: use it for
// one cut.
func AnySurvive(seed uint64) Survivors {
	r := rand.New(rand.NewPCG(seed, 0x706f776572))
	return func(_, _, writes int) int { return r.IntN(writes + 1) }
}

// power is what a node is to losses of power. What is in it is not in the node's memory, and so
// outlives it.
type power struct {
	// A verb of before does not land in this life: see network.gone.
	born  uint64 // at which comeback of the pool's this life has begun
	steps uint64 // see Steps
	// expelled is kept as a majority of nodes that remember would: it outlives the node.
	expelled bool
	// A node that is away is dead, and comes back at the fault's end. Restart is not for others
	// meanwhile: the end of the fault fails the Run when the node is up by then.
	away    int      // the fault that took it away, and brings it back, counting from 1; 0: none
	returns bool     // a fault has taken it away
	hosted  []hosted // what begins anew with it
}

// hosted is a worker that runs beside a node.
type hosted struct {
	name string
	f    func(ep rdma.Endpoint)
}

// powerCut is a loss of power that was asked for and has not happened: behind a step of a node, or
// of all.
type powerCut struct {
	node int
	step uint64
	keep Survivors
}

// Steps returns how many steps a node has made in Runs: pieces of verbs that landed there, READs
// behind APPENDs, calls that were served, and the two steps of each NTStore. What may survive a
// loss of power changes with a step alone: enumerating them runs k from 1 to this. AnyNode is all
// nodes together.
func (p *pool) Steps(node int) uint64 {
	if node == AnyNode {
		return p.allSteps
	}
	return p.nodes[node].steps
}

// CutPower kills a node, as KillNode does, and leaves of what was not durable what survives;
// AnyNode: of all at once. A node that is dead already keeps what it has. What is left of each word
// is decided here, at once, before the node counts as dead.
func (p *pool) CutPower(node int, keep Survivors) {
	for i := range p.nodes {
		if n := &p.nodes[i]; (node == AnyNode || node == i) && !n.dead {
			p.trace(Event{Kind: PowerCut, Worker: fmt.Sprintf("node %d", i)})
			n.memory.PowerOff(keep)
			if n.pmem != nil {
				n.pmem.PowerOff()
			}
			p.kill(i)
		}
	}
}

// CutPowerAt cuts the power of a node behind its k-th step, counting from 1; AnyNode: of all,
// behind the k-th of all. A step that was passed cuts nothing. Several cuts may be asked for.
func (p *pool) CutPowerAt(node int, k uint64, keep Survivors) {
	p.powerCuts = append(p.powerCuts, powerCut{node, k, keep})
}

// stepped counts a step of a node, and cuts the power behind it. It is called when the step has
// taken effect, so that a cut behind it finds what it wrote among what may survive.
func (p *pool) stepped(n *node) {
	n.steps++
	p.allSteps++
	for i := 0; i < len(p.powerCuts); i++ {
		if c := p.powerCuts[i]; p.Steps(c.node) == c.step {
			p.powerCuts = slices.Delete(p.powerCuts, i, i+1)
			p.CutPower(c.node, c.keep)
			i--
		}
	}
}

// Restart brings a dead node back. With Options.PMem its memory has what it had when the node was
// killed, or what survived the loss of power, and all of that is durable. Without, and in its NIC's
// memory, there is nothing. Workers that ran on it, rings and verbs of before are gone; those of
// Host begin anew. The view, fences and revocations are not in the node: they are as durable as
// those of nodes that remember (package tcp). A node that was expelled, or that the view has as
// gone, is a new one, which is empty and in no pool: it stays dead, and the error wraps
// rdma.ErrStale.
func (s *Sim) Restart(node int) error {
	if node < 0 || node >= len(s.nodes) {
		return fmt.Errorf("restart node %d of %d: %w", node, len(s.nodes), rdma.ErrAccess)
	}
	n := &s.nodes[node]
	if !n.dead {
		return fmt.Errorf("restart node %d, which is up: %w", node, rdma.ErrExists)
	}
	// Main memory ends with the node's process. A stale node has nothing of the one that was
	// expelled.
	stale := n.expelled || s.view.Members[node].Gone
	if stale || !n.memory.Persistent() {
		n.memory.Forget()
	}
	// What is left is durable from here on, and no word is known to be changed by atomics.
	n.memory.Start()
	if stale {
		return fmt.Errorf("restart node %d, which the pool went on without: %w", node, rdma.ErrStale)
	}
	// A NIC's memory is empty when it is powered on.
	for _, r := range s.opts.Device {
		if r.Node == node {
			n.memory.Write(r.Offset, make([]byte, r.Bytes))
		}
	}
	// From here on verbs land: what survived is durable, and what is to be empty is.
	s.comebacks++
	n.dead, n.busy, n.born = false, 0, s.comebacks
	s.trace(Event{Kind: Restart, Worker: fmt.Sprintf("node %d", node)})
	// Last: they find the node up. They begin in later events, each under a new identity.
	for _, h := range n.hosted {
		if _, err := s.start(h.name, n, nil, nil, h.f); err != nil {
			return fmt.Errorf("start %s of node %d anew: %w", h.name, node, err)
		}
	}
	return nil
}

// Restarts returns how often nodes have come back.
func (p *pool) Restarts() uint64 { return p.comebacks }

// bringBack restarts the nodes that a fault took away, unless the pool went on without them. It is
// called at the end of the fault with that index.
func (s *Sim) bringBack(fault int) {
	for i := range s.nodes {
		if n := &s.nodes[i]; n.away == fault+1 {
			n.away = 0
			if err := s.Restart(i); err != nil && !errors.Is(err, rdma.ErrStale) {
				s.fail(err)
			}
		}
	}
}

// Returning is a pool as its keepers see it, if nodes come back from faults. It adds what tcp's
// pools know of nodes that come back; without it keepers expel a node at its first failure.
type Returning struct{ *Sim }

// returnGrace is for how long nodes that faults take away may fail verbs. A node that fails verbs
// for longer may be expelled, and stays away then.
const returnGrace = time.Millisecond

// NodeGrace implements rdma.NodeGracer: one that a fault has taken away, which brings it back, has
// a moment.
func (r Returning) NodeGrace(node int) time.Duration {
	if n := &r.nodes[node]; n.returns && (!n.dead || n.away > 0) {
		return returnGrace
	}
	return 0
}

// MayExpel implements rdma.ExpelChecker: none while all nodes are dead or away.
func (r Returning) MayExpel() error {
	for i := range r.nodes {
		if !r.nodes[i].dead {
			return nil
		}
	}
	return fmt.Errorf("no node answers: %w", rdma.ErrMinority)
}

var (
	_ rdma.Fabric       = Returning{}
	_ rdma.NodeGracer   = Returning{}
	_ rdma.ExpelChecker = Returning{}
)
