package rtx

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
	case off < l.logs || off >= l.data.End():
		return ""
	case off < l.roots:
		c := (off-l.logs)/l.logBytes*uint64(l.Nodes) + uint64(n)
		return fmt.Sprintf("%s of client %d", logPart((off-l.logs)%l.logBytes), c)
	case off < l.metas.Table:
		return fmt.Sprintf("%s of root %d", metaPart(off), (off-l.roots)/MetaBytes*uint64(l.Nodes)+uint64(n))
	case off < l.data.Table:
		return fmt.Sprintf("owner of metadata chunk %d", (off-l.metas.Table)/8)
	case off < l.metas.First:
		return fmt.Sprintf("owner of data chunk %d", (off-l.data.Table)/8)
	case off < l.metas.End():
		r := Ref(l.numberOf(n, 0, int((off-l.metas.First)/MetaBytes)))
		return fmt.Sprintf("%s of %v", metaPart(off), r)
	case off < l.data.First:
		return ""
	}
	in := off - l.data.First
	return fmt.Sprintf("data chunk %d, byte %d", in/l.data.Bytes, in%l.data.Bytes)
}

// logPart names the word at an offset in a log.
func logPart(off uint64) string {
	switch {
	case off < ceilingAt:
		return "log state"
	case off < recordAt:
		return "ceiling"
	}
	return "log record"
}

// metaPart names the word at an address of metadata.
func metaPart(off uint64) string {
	if off%MetaBytes < 8 {
		return "lock"
	}
	return "pointer"
}

// Counts appends the worker's counters, with the paper's names: always the same
// ones in the same order.
func (w *Worker) Counts(to []telemetry.Counter) []telemetry.Counter {
	n := &w.stats
	return append(to,
		telemetry.Counter{Name: "commits", Count: n.Commits},
		telemetry.Counter{Name: "commits without a log", Count: n.Alone},
		telemetry.Counter{Name: "aborts", Count: n.Retries},
		telemetry.Counter{Name: "locks waited for", Count: n.Waits},
		telemetry.Counter{Name: "late locks released", Count: n.Freed},
		telemetry.Counter{Name: "repairs: aborted", Count: n.Aborted},
		telemetry.Counter{Name: "repairs: pointers stolen", Count: n.Stolen},
		telemetry.Counter{Name: "repairs: finished", Count: n.Finished},
		telemetry.Counter{Name: "repaired by others", Count: n.Lost},
		telemetry.Counter{Name: "chunks claimed", Count: n.Claims},
		telemetry.Counter{Name: "chunks scanned", Count: n.Scans},
	)
}
