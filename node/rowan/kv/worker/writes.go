package worker

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

// writes is the replication of RWrite-KV, Batch-KV and Share-KV: a worker WRITEs entries to logs in
// the backups' memory, with a READ behind each WRITE that makes it durable. An entry has its place
// before its write has a version, and keeps it: a WRITE that failed is repeated as it was. It
// relies on the verbs of one connection landing in their order, so that no earlier attempt lands
// behind an acknowledged one.
type writes struct {
	w *Worker
	// By node; nil: the worker's own.
	logs []*rowan.Remote
	// By node: the questions for segments.
	asked []state.Asking
	// By node: entries that are gathered and not posted; nil: none.
	open []*gathered
	// All that are not acknowledged, open ones included.
	flying []*gathered
	// Freed ones, which keep their buffers.
	spare []*gathered
	// Entries are gathered until they have most bytes, or for the time patience. With 0 each is
	// posted at once.
	most     int
	patience time.Duration
}

// gathered is a run of entries that one WRITE takes to a log. Their places follow each other there.
type gathered struct {
	log *rowan.Remote
	// The place of the first entry.
	at rdma.Addr
	// The sealed entries, each at a stride.
	bytes []byte
	// Writes that have not seen that their entry is acknowledged.
	entries int
	// When it is posted, or posted again.
	due time.Duration
	// nil: it is not in flight.
	batch *rdma.Batch
	// The WRITE has succeeded, and the READ behind it.
	acked bool
}

func newWrites(w *Worker) *writes {
	s := w.s
	x := &writes{
		w: w, logs: make([]*rowan.Remote, s.Opt.Nodes), asked: make([]state.Asking, s.Opt.Nodes),
		open: make([]*gathered, s.Opt.Nodes),
	}
	// With other kinds most is 0, so that add posts each entry at once.
	if s.Opt.Kind == kv.Batch {
		x.most, x.patience = s.Opt.Gather, s.Opt.GatherFor
	}
	for node := range x.logs {
		switch {
		// A worker has a log of its own there, which is no remote log.
		case node == s.Node:
		case s.Opt.Kind == kv.Share:
			x.logs[node] = s.Shared[node]
		default:
			x.logs[node] = s.NewRemote(node, s.Node*s.Opt.Workers+w.number)
		}
	}
	return x
}

// reserve takes the place of the entry. Its error wraps errAway if the lender has not answered.
func (x *writes) reserve(a *appending, n int, del bool) (err error) {
	// No other entry comes to the place before it is given back.
	a.place, err = x.logs[a.node].Place(n, del)
	if errors.Is(err, rowan.ErrAsked) {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	return err
}

// unreserve gives the place back.
func (x *writes) unreserve(a *appending, _ int) { x.logs[a.node].Return(a.place) }

// add adds an entry to those that are gathered for its backup. They are posted when there are
// enough, or when the next place does not follow theirs.
func (x *writes) add(_ *rdma.Batch, o *op, a *appending, now time.Duration) error {
	kind, record := x.w.encode(o)
	// Only entries at places that follow each other fit into one WRITE.
	g := x.open[a.node]
	// The place does not follow the others: another worker of Share took the one in between, or a
	// segment was full.
	if g != nil && a.place.At != g.end() {
		if err := x.post(g); err != nil {
			return err
		}
		g = nil
	}
	if g == nil {
		g = x.newGathered()
		g.log, g.at, g.due = x.logs[a.node], a.place.At, now+x.patience
		x.flying, x.open[a.node] = append(x.flying, g), g
		x.w.again(g.due)
	}
	// The gap is at most a stride, by the check above.
	from := int(a.place.At.Offset() - g.at.Offset())
	n := from + rowan.Size(len(record))
	g.bytes = slices.Grow(g.bytes, n-len(g.bytes))
	// Between two entries there may be a gap up to the next stride.
	clear(g.bytes[len(g.bytes):n])
	g.bytes = g.bytes[:n]
	// The checksum covers the place: what an earlier use of the segment left there does not verify.
	g.log.Seal(a.place, kind, uint32(o.term), record, g.bytes[from:])
	g.entries++
	a.gathered = g
	if n >= x.most {
		return x.post(g)
	}
	return nil
}

// end returns the place that follows the gathered entries.
func (g *gathered) end() rdma.Addr {
	n := (len(g.bytes) + rdma.Stride - 1) / rdma.Stride * rdma.Stride
	return g.at.Add(uint64(n))
}

func (x *writes) newGathered() *gathered {
	n := len(x.spare)
	if n == 0 {
		return new(gathered)
	}
	g := x.spare[n-1]
	x.spare = x.spare[:n-1]
	return g
}

// post posts the gathered entries. What is behind them is gathered anew.
func (x *writes) post(g *gathered) error {
	if node := g.at.Node(); x.open[node] == g {
		x.open[node] = nil
	}
	b := x.w.ep.Batch()
	b.Chain()
	// The bytes stay with g, so that the WRITE can be repeated as it was.
	b.WriteCopy(g.at, g.bytes)
	b.Read(g.at, 8)
	g.batch = b
	return x.w.ep.Post(b.As(kv.StepWrite))
}

// goOn reports whether the WRITE of the entry has succeeded; step repeats it if it has failed.
func (x *writes) goOn(_ *op, a *appending, _ time.Duration) (acked bool, err error) {
	g := a.gathered
	if !g.acked {
		return false, nil
	}
	// The log leaves a segment when all of its places have landed.
	x.logs[a.node].Landed(a.place)
	a.gathered = nil
	if g.entries--; g.entries == 0 {
		*g = gathered{bytes: g.bytes[:0]}
		x.spare = append(x.spare, g)
	}
	return true, nil
}

// step posts what has waited long enough for other entries, repeats what has failed, and asks for
// segments.
func (x *writes) step(now time.Duration) (err error) {
	x.flying = slices.DeleteFunc(x.flying, func(g *gathered) bool {
		if g.batch != nil && g.batch.Finished() {
			failed := g.batch.Err()
			// A READ that succeeded says that the WRITE ahead of it is durable.
			g.acked = failed == nil
			g.batch.Release()
			g.batch, g.due = nil, now+state.RetryPause
			if _, e := x.w.ended(failed); err == nil {
				err = e
			}
		}
		switch {
		case g.acked:
			return true
		// It has waited long enough for others, or is to be repeated.
		case g.batch == nil && now >= g.due && err == nil:
			err = x.post(g)
		case g.batch == nil:
			x.w.again(g.due)
		}
		return false
	})
	for node, log := range x.logs {
		if log != nil && err == nil {
			err = x.asked[node].Step(x.w.ep, log, x.w.again)
		}
	}
	return err
}

// turn lets the logs go on in a committed term. What was written in earlier terms is at rest.
func (x *writes) turn(t *state.Term) {
	x.flying = slices.DeleteFunc(x.flying, func(g *gathered) bool { // those to members are all acknowledged
		if node := g.at.Node(); x.open[node] == g {
			x.open[node] = nil
		}
		if g.batch != nil {
			g.batch.Release()
		}
		return true
	})
	for node, log := range x.logs {
		if log != nil {
			log.Begin(t.WritesTo(node))
		}
	}
}

// giveUp leaves the WRITE in flight: it goes to a dead node, and is dropped when the term is
// committed.
func (x *writes) giveUp(_ *op, a *appending) { a.gathered = nil }
