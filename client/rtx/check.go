package rtx

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Usage is what Check has found.
type Usage struct {
	// Objects counts the objects with data, roots among them.
	Objects int
	// Held counts locks that are held.
	Held int
	// Over counts those of them of which the transaction is over: the next client
	// that meets one releases it.
	Over int
	// Unfinished counts commits that were decided and not finished. Some of their
	// objects may be as they were before.
	Unfinished int
	// Buffers counts the buffers of chunks that were handed out, and Named those
	// of them that an object names.
	Buffers int
	Named   int
	// Owned counts the chunks that a client has, and Handed those that were
	// handed out.
	Owned  int
	Handed int
	// Lost counts chunks of clients that are not alive.
	Lost int
}

// mostErrors bounds the errors that Check returns.
const mostErrors = 10

// audit is the state of a Check.
type audit struct {
	*Worker
	Usage
	// tables has the words of metadata's chunks and of data's, by node.
	tables [2][][]node.Entry
	// named has the object that names a buffer, by the buffer's unit.
	named map[uint64]Ref
	// states has the words of logs, by client.
	states []state
	errs   []error
}

// fail notes an error that wraps client.ErrDamaged.
func (a *audit) fail(format string, args ...any) {
	if len(a.errs) < mostErrors {
		a.errs = append(a.errs, fmt.Errorf(format+": %w", append(args, client.ErrDamaged)...))
	}
}

// Check looks at all objects of a pool that no client is using. Each has whole
// data of its own, which no other object names. alive reports whether a client is
// there, for the chunks that it has. The error wraps client.ErrDamaged when the
// pool is damaged; the Usage is valid all the same.
func (w *Worker) Check(alive func(rdma.ClientID) bool) (Usage, error) {
	a := &audit{Worker: w, named: map[uint64]Ref{}}
	w.trips.Begin()
	for n := range w.Nodes {
		for k, arena := range []*chunks.Arena{&w.metas, &w.data} {
			entries, err := w.memory.table.Read(arena, n)
			if err != nil {
				return a.Usage, err
			}
			a.tables[k] = append(a.tables[k], entries)
			for _, e := range entries {
				a.chunk(k, e, alive)
			}
		}
	}
	if err := a.logs(); err != nil {
		return a.Usage, err
	}
	for i := range w.Roots {
		if err := a.objects(w.Meta(w.Root(i)), 1, func(int) uint64 { return uint64(i + 1) }); err != nil {
			return a.Usage, err
		}
	}
	for n, entries := range a.tables[0] {
		for k, e := range entries {
			if e == 0 {
				continue
			}
			number := func(i int) uint64 { return w.numberOf(n, k, i) }
			if err := a.objects(w.metas.At(n, k), metaChunk/MetaBytes, number); err != nil {
				return a.Usage, err
			}
		}
	}
	a.Named = len(a.named)
	return a.Usage, errors.Join(a.errs...)
}

// chunk counts a chunk by its word. kind is the index in tables.
func (a *audit) chunk(kind int, e node.Entry, alive func(rdma.ClientID) bool) {
	switch {
	case e == 0:
		return
	case e.Owner() == 0 || kind == 1 && e.Class() >= len(a.Sizes):
		a.fail("a chunk's word is %v", e)
		return
	case e.Owner() != node.Left:
		a.Owned++
		if !alive(e.Owner()) {
			a.Lost++
		}
	}
	a.Handed++
	if kind == 1 {
		a.Buffers += a.buffers(e.Class())
	}
}

// objects looks at n objects with metadata in a row from an address.
func (a *audit) objects(at rdma.Addr, n int, number func(i int) uint64) error {
	b := a.ep.Batch()
	defer a.trips.Drop(b)
	op := b.Read(at, n*MetaBytes)
	a.trips.Begin()
	if err := a.trips.Do(stepReadMeta, b); err != nil {
		return fmt.Errorf("read metadata at %v: %w", at, err)
	}
	for i := range n {
		m := MetaOf(op.Buf[i*MetaBytes:])
		if m.Lock.Held() {
			a.Held++
			if a.released(m.Lock, a.states[min(int(a.owner(m.Lock)), a.Clients)]) {
				a.Usage.Over++
			}
		}
		if a.Absent(m.Pointer) {
			continue
		}
		a.Objects++
		if err := a.object(Ref(number(i)), m.Pointer); err != nil {
			return err
		}
	}
	return nil
}

// object looks at the data of an object: the pointer names a buffer of a chunk
// that was handed out, and its header names the object.
func (a *audit) object(r Ref, p Pointer) error {
	unit := a.unit(p)
	if unit > a.units*uint64(a.Nodes) || p.class() >= len(a.Sizes) {
		a.fail("%v names %#x, which is no buffer", r, uint64(p))
		return nil
	}
	n, k, i := a.chunkOf(p)
	e := a.tables[1][n][k]
	if e == 0 || e.Class() != p.class() || i >= a.buffers(p.class()) || a.unitOf(n, k, p.class(), i) != unit {
		a.fail("%v names %#x, which is no buffer of chunk %d of node %d, %v", r, uint64(p), k, n, e)
		return nil
	}
	if other, ok := a.named[unit]; ok {
		a.fail("%v and %v name the same buffer at %v", r, other, a.buffer(p))
	}
	a.named[unit] = r
	b := a.ep.Batch()
	defer a.trips.Drop(b)
	op := b.Read(a.buffer(p), a.bufferBytes(p.class()))
	if err := a.trips.Do(stepReadData, b); err != nil {
		return fmt.Errorf("read %v: %w", r, err)
	}
	if of, _, ok := a.Decode(op.Buf, p); !ok || of.number() != r.number() {
		a.fail("%v names %v, which has no data of it", r, a.buffer(p))
	}
	return nil
}

// logs reads the word of each client's log.
func (a *audit) logs() error {
	a.states = make([]state, a.Clients+1)
	for from := 1; from <= a.Clients; from += scanAtOnce {
		n := min(scanAtOnce, a.Clients+1-from)
		b := a.ep.Batch()
		for i := range n {
			b.Read(a.log(rdma.ClientID(from+i)).Add(stateAt), 8)
		}
		a.trips.Begin()
		err := a.trips.Do(stepReadLog, b)
		for i := range n {
			if err == nil {
				a.states[from+i] = state(b.Op(i).Word(0))
			}
		}
		a.trips.Drop(b)
		if err != nil {
			return fmt.Errorf("read the logs of clients %d to %d: %w", from, from+n-1, err)
		}
	}
	for _, s := range a.states {
		if s.phase() == phaseDoing {
			a.Unfinished++
		}
	}
	return nil
}

// Look returns the data of an object as its pointer names it now, whatever its
// lock says. It is meant for pools that no client is using. The error wraps
// ErrNoObject if there is none. The data is valid until the next call.
func (w *Worker) Look(r Ref) ([]byte, error) {
	w.trips.Begin()
	if !w.valid(r) {
		return nil, fmt.Errorf("look at %v: %w", r, ErrNoObject)
	}
	m, _, err := w.look(w.Meta(r), 0)
	if err != nil {
		return nil, fmt.Errorf("look at %v: %w", r, err)
	}
	at, n, ok := w.Buffer(m.Pointer)
	if !ok {
		return nil, fmt.Errorf("look at %v: %w", r, ErrNoObject)
	}
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	op := b.Read(at, n)
	if err := w.trips.Do(stepReadData, b); err != nil {
		return nil, fmt.Errorf("look at %v: %w", r, err)
	}
	of, data, whole := w.Decode(op.Buf, m.Pointer)
	switch {
	case !whole:
		return nil, fmt.Errorf("%v has no data at %v: %w", r, at, client.ErrDamaged)
	case of != r:
		return nil, fmt.Errorf("look at %v: %w", r, ErrNoObject)
	}
	w.seenData = append(w.seenData[:0], data...)
	return w.seenData, nil
}
