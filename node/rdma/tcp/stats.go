package tcp

import (
	"os"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

var pid = os.Getpid()

// NodeStats is what a node has done since it began.
type NodeStats struct {
	Reads       uint64 `json:"reads"` // verbs that succeeded
	Writes      uint64 `json:"writes"`
	Atomics     uint64 `json:"atomics"`
	Calls       uint64 `json:"calls"`
	Sends       uint64 `json:"sends"` // messages that were delivered, and entries that landed
	BytesRead   uint64 `json:"bytes_read"`
	BytesWrote  uint64 `json:"bytes_wrote"`
	Frames      uint64 `json:"frames"`  // answered
	Flushes     uint64 `json:"flushes"` // writes to connections; frames by flushes tell how well they coalesce
	Access      uint64 `json:"access"`  // verbs that were refused, by why
	Revoked     uint64 `json:"revoked"`
	Stale       uint64 `json:"stale"`
	Failed      uint64 `json:"failed"`
	Connections int    `json:"connections"` // now
	Refused     uint64 `json:"refused"`     // connections that were not let in, but for failed authentication
	// Of these, for lack of room, because they said nothing in time, or speak another version; the
	// others broke a rule.
	RefusedRoom    uint64 `json:"refused_room"`
	RefusedSilent  uint64 `json:"refused_silent"`
	RefusedVersion uint64 `json:"refused_version"`
	AuthFailures   uint64 `json:"auth_failures"` // connections with a wrong token, or where TLS did not come about
	Slow           uint64 `json:"slow"`          // connections that were ended because they did not take their answers
	// connections that were ended because they did not keep to the protocol
	Breaches uint64 `json:"breaches"`
	// CPUSeconds is the processor time that the node's process has used, in user and kernel mode.
	CPUSeconds float64 `json:"cpu_seconds"`
}

// tally is what one connection did since it was added to the node's counters; its goroutine's own.
type tally struct {
	reads, writes, atomics, calls, sends, frames uint64
	read, wrote                                  uint64
	access, revoked, stale, other                uint64
}

func (t *tally) did(q *request) {
	switch q.verb {
	case rdma.Read:
		t.reads++
		t.read += uint64(q.n)
	case rdma.Write:
		t.writes++
		t.wrote += uint64(q.n)
	case rdma.Send:
		t.sends++
		t.wrote += uint64(q.n)
	default:
		t.atomics++
	}
}

func (t *tally) failed(st status, n int) {
	switch st {
	case statusAccess:
		t.access += uint64(n)
	case statusRevoked:
		t.revoked += uint64(n)
	case statusStale:
		t.stale += uint64(n)
	default:
		t.other += uint64(n)
	}
}

type counters struct {
	reads, writes, atomics, calls, sends, frames, flushes atomic.Uint64
	read, wrote                                           atomic.Uint64
	access, revoked, stale, other                         atomic.Uint64
	refused                                               [reasons]atomic.Uint64
	breaches, slow                                        atomic.Uint64
}

// add adds what a connection did, and empties that.
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

func (c *counters) snapshot(conns int) NodeStats {
	s := NodeStats{
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
func (n *Node) Stats() NodeStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats.snapshot(len(n.conns))
}
