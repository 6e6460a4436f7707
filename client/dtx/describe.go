package dtx

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Describe says what lies at an address of the pool, for traces. It returns ""
// for an address that belongs to no objects.
func (l *Layout) Describe(a rdma.Addr) string {
	off, n := a.Offset(), a.Node()
	switch {
	case off < l.logs || off >= l.chunks.End():
		return ""
	case off < l.roots:
		c := (off-l.logs)/l.logBytes*uint64(l.Nodes) + uint64(n)
		return fmt.Sprintf("%s of client %d", logPart((off-l.logs)%l.logBytes), c)
	case off < l.chunks.Table:
		room := uint64(roomBytes(l.RootBytes))
		return fmt.Sprintf("%s of root %d", objectPart((off-l.roots)%room),
			(off-l.roots)/room*uint64(l.Nodes)+uint64(n))
	case off < l.chunks.First:
		return fmt.Sprintf("owner of chunk %d", (off-l.chunks.Table)/8)
	}
	in := off - l.chunks.First
	return fmt.Sprintf("chunk %d, byte %d", in/l.chunks.Bytes, in%l.chunks.Bytes)
}

func logPart(off uint64) string {
	switch {
	case off < claimAt:
		return "end"
	case off < ceilingAt:
		return "claim"
	case off < recordAt:
		return "ceiling"
	}
	return "log record"
}

func objectPart(off uint64) string {
	if off < checksumAt {
		return "lock"
	}
	return "body"
}

// Counts appends the worker's counters: always the same ones in the same order.
func (w *Worker) Counts(to []telemetry.Counter) []telemetry.Counter {
	n := &w.stats
	return append(to,
		telemetry.Counter{Name: "commits", Count: n.Commits},
		telemetry.Counter{Name: "aborts", Count: n.Retries},
		telemetry.Counter{Name: "locks waited for", Count: n.Waits},
		telemetry.Counter{Name: "torn reads", Count: n.Torn},
		telemetry.Counter{Name: "locks of the dead released", Count: n.Freed},
		telemetry.Counter{Name: "clients recovered", Count: n.Recovered},
		telemetry.Counter{Name: "commits replayed", Count: n.Replayed},
		telemetry.Counter{Name: "chunks claimed", Count: n.Claims},
		telemetry.Counter{Name: "chunks scanned", Count: n.Scans},
	)
}
