package sim

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim/memory"
)

// pool is the memory nodes, and what takes them away.
//
// A node is up, or dead; Restart, or a fault that ends, brings it back in another life. The nodes'
// number never changes: stand-ins of a pool are among them from the beginning.
type pool struct {
	*engine
	sched     *scheduler
	nodes     []node
	allSteps  uint64 // of all nodes
	comebacks uint64 // of all nodes
	// They are looked at in the order in which CutPowerAt was called. Each happens once.
	powerCuts []powerCut // to come
}

// makePool returns nodes whose memory is all zero. With PMem, a READ flushes WRITEs to the media
// where no cache keeps them (DDIO off), or where caches survive (eADR).
func makePool(g *engine, sched *scheduler) pool {
	p := pool{engine: g, sched: sched, nodes: make([]node, g.opts.Nodes)}
	for i := range p.nodes {
		n := &p.nodes[i]
		n.engine, n.id = g, i
		if o := g.opts.PMem; o != nil {
			n.memory = memory.NewPersistent(i, g.opts.Memory, o.EADR || !o.DDIO)
			n.pmem = pmem.NewDevice(*o)
		} else {
			n.memory = memory.New(i, g.opts.Memory)
		}
		if g.hw != nil {
			n.cores = make([]resource, g.hw.NodeCores)
			n.host = &machine{port: &n.port}
		}
	}
	return p
}

// Nodes returns the number of memory nodes.
func (p *pool) Nodes() int { return len(p.nodes) }

// Size returns the bytes of registered memory of each node.
func (p *pool) Size() uint64 { return p.opts.Memory }

// KillNode kills a memory node now: verbs to it that have not landed never will. A verb that has
// landed may have lost its answer: see network.complete. A node that is dead already stays so, and
// that is no error.
func (p *pool) KillNode(node int) error {
	if node < 0 || node >= len(p.nodes) {
		return fmt.Errorf("kill node %d of %d: %w", node, len(p.nodes), rdma.ErrAccess)
	}
	p.kill(node)
	return nil
}

// KillNodeAfter kills a memory node at a time from now. The node dies in an event of its own,
// between two others. Another call does not replace it.
func (p *pool) KillNodeAfter(node int, d time.Duration) {
	p.at(p.now()+int64(d), event{kind: nodeDeath, node: int32(node)})
}

// KillNodeAt kills a memory node behind the k-th verb that lands on it in a Run, counting from 1. A
// verb that tears counts with its first piece, and an APPEND with each of its blocks. 0 takes it
// back. A number that was passed kills it behind the next verb.
func (p *pool) KillNodeAt(node int, k uint64) { p.nodes[node].killAt = k }

// Landed returns how many verbs have taken effect on a node in Runs: enumerating its crashes runs k
// from 1 to this.
func (p *pool) Landed(node int) uint64 { return p.nodes[node].verbs }

// kill takes a node away, for all workers, at this moment. Nothing that was posted before lands,
// even if the node comes back.
//
// Its memory stays as it is: Restart decides what of it the next life has. Workers that run on it
// crash in the order in which they were started, those that Host began among them.
func (p *pool) kill(node int) {
	if n := &p.nodes[node]; !n.dead {
		n.dead = true
		// What has happened is not to happen again in the next life. A kill that came from
		// elsewhere leaves killAt to that.
		if n.verbs >= n.killAt {
			n.killAt = 0
		}
		p.trace(Event{Kind: Kill, Worker: fmt.Sprintf("node %d", node)})
		for _, w := range p.sched.workers {
			switch {
			// Tasks crash with their client.
			case w.root != w || w.home != n:
			// The worker that runs made this call, and cannot be stopped within it.
			case p.sched.current != nil && p.sched.current.root == w:
				w.crashAfter(w.sent) // at its next verb
			default:
				p.sched.crash(w)
			}
		}
	}
}

// Dead reports whether a memory node has died. It is what the simulation knows; a pool's clients
// find it out by failures of verbs, and agree in the view.
func (p *pool) Dead(node int) bool { return p.nodes[node].dead }

// PMem returns the modules of a node; nil: its memory is not persistent.
func (p *pool) PMem(node int) *pmem.Device { return p.nodes[node].pmem }

// Unflushed returns how many words of a node were written and are not durable: each survives a loss
// of power, or not. It is what Survivors are asked about.
func (p *pool) Unflushed(node int) int { return p.nodes[node].memory.Unflushed() }
