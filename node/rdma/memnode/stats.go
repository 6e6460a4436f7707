package memnode

import (
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// tally is what one connection did since it was added to the node's counters; its goroutine's own.
// It is not shared, so that a verb costs no atomic. conn.flush adds it to the node's, and empties
// it.
type tally struct {
	// Verbs that were executed, by kind, and calls that ran; of APPENDs each entry is one send; and
	// frames answered.
	reads, writes, atomics, calls, sends, frames uint64
	// Bytes that READs returned, and that the others wrote or sent.
	read, wrote uint64
	// Verbs, and frames of other kinds, that were refused or failed, by their status.
	access, revoked, stale, other uint64
}

// did counts a verb that is executed. An APPEND is counted by landNext, block by block.
func (t *tally) did(q *transport.Request) {
	switch q.Verb {
	case rdma.Read:
		t.reads++
		t.read += uint64(q.N)
	case rdma.Write:
		t.writes++
		t.wrote += uint64(q.N)
	case rdma.Send:
		t.sends++
		t.wrote += uint64(q.N)
	default:
		t.atomics++
	}
}

// failed counts n verbs, or one request of another kind, that ended in a status.
func (t *tally) failed(st transport.Status, n int) {
	switch st {
	case transport.StatusAccess:
		t.access += uint64(n)
	case transport.StatusRevoked:
		t.revoked += uint64(n)
	case transport.StatusStale:
		t.stale += uint64(n)
	default:
		t.other += uint64(n)
	}
}

// counters are the node's, since it began. Connections add to them, and inspections load them,
// without a lock: the numbers of one snapshot may be of slightly different times.
type counters struct {
	reads, writes, atomics, calls, sends, frames, flushes atomic.Uint64
	read, wrote                                           atomic.Uint64
	access, revoked, stale, other                         atomic.Uint64
	// By reason, connections that were not let in: see Node.refuse.
	refused [reasons]atomic.Uint64
	// Connections that were ended: for a breach of the protocol, and because their peer took no
	// answers.
	breaches, slow atomic.Uint64
}

// add adds what a connection did, and empties that. Zeros are not added: most frames have verbs of
// one kind, and each addition is one to a cache line that all connections share. Each call is a
// write to a connection.
func (c *counters) add(t *tally) {
	for _, x := range []struct {
		to   *atomic.Uint64
		from uint64
	}{
		{&c.reads, t.reads}, {&c.writes, t.writes}, {&c.atomics, t.atomics}, {&c.calls, t.calls}, {&c.sends, t.sends},
		{&c.frames, t.frames},
		{&c.read, t.read}, {&c.wrote, t.wrote}, {&c.access, t.access}, {&c.revoked, t.revoked}, {&c.stale, t.stale},
		{&c.other, t.other}, {&c.flushes, 1},
	} {
		if x.from > 0 {
			x.to.Add(x.from)
		}
	}
	*t = tally{}
}

// snapshot returns the counters as an inspection tells them, with the number of connections now.
// Failed authentications are not among those refused.
func (c *counters) snapshot(conns int) control.NodeStats {
	s := control.NodeStats{
		Reads: c.reads.Load(), Writes: c.writes.Load(), Atomics: c.atomics.Load(), Calls: c.calls.Load(),
		Sends: c.sends.Load(), BytesRead: c.read.Load(), BytesWrote: c.wrote.Load(), Frames: c.frames.Load(),
		Flushes: c.flushes.Load(), Access: c.access.Load(), Revoked: c.revoked.Load(), Stale: c.stale.Load(),
		Failed: c.other.Load(), Connections: conns, Breaches: c.breaches.Load(), CPUSeconds: realtime.CPU().Seconds(),
		RefusedRoom: c.refused[refusedRoom].Load(), RefusedSilent: c.refused[refusedSilent].Load(),
		RefusedVersion: c.refused[refusedVersion].Load(), AuthFailures: c.refused[refusedAuth].Load(),
		Slow: c.slow.Load(),
	}
	s.Refused = s.RefusedRoom + s.RefusedSilent + s.RefusedVersion + c.refused[refusedRules].Load()
	return s
}

// Stats tells what the node has done since it began.
func (n *Node) Stats() control.NodeStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats.snapshot(len(n.conns))
}
