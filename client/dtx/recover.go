package dtx

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// errClaimed is wrapped when another client recovers the same one.
var errClaimed = fmt.Errorf("another client recovers it, or died at that: %w", rdma.ErrTimeout)

// Recover ends what a client has left that was fenced off, and of which nothing
// is in flight. It replays a commit for which the log is whole. It says that all
// of the client's transactions are over, so that other clients release their
// locks on sight. It gives the client's chunks back. A crash at any verb leaves
// what another Recover completes. Afterwards the identity may be used by another
// client, and not before: clients that may recover at the same time call Adopt.
//
// Operations that meet a lock of the client wait for the recovery.
func (w *Worker) Recover(c rdma.ClientID) error {
	w.trips.Begin()
	for p := w.waits; ; {
		err := w.recover(c, nil)
		if !errors.Is(err, errClaimed) || !p.Again() {
			return err
		}
	}
}

// mostHolders bounds how often Adopt meets the claim of another client.
const mostHolders = 1 << 10

// Adopt fences a client off that Fabric.Clients has listed, dead or suspected,
// recovers it, and gives its identity back. Any number of clients may do so at a
// time; one of them does it. A later holder of the identity is not harmed. Adopt
// also recovers clients that have died in the midst of recovering this one.
func (w *Worker) Adopt(f rdma.Fabric, c rdma.Client) error {
	if err := f.RevokeLife(c); err != nil {
		return fmt.Errorf("fence client %d off: %w", c.ID, err)
	}
	same := func(o rdma.Client) bool { return o.ID == c.ID && o.Life == c.Life }
	still := func() (bool, error) {
		list, err := rdma.ListClients(f)
		return slices.ContainsFunc(list, same), err
	}
	p := kit.Retry{Env: w.ep, Pause: w.waits.Pause}
	for range mostHolders {
		w.trips.Begin()
		err := w.recover(c.ID, still)
		if !errors.Is(err, errClaimed) {
			if err != nil {
				return err
			}
			return f.Forget(c)
		}
		if err := w.adoptHolder(f, c.ID); err != nil {
			return err
		}
		p.Wait()
	}
	return fmt.Errorf("recover client %d: %w", c.ID, errClaimed)
}

// adoptHolder recovers the client that has claimed another one's log, if it has
// died. A client is dead before another one claims its log, so this ends.
func (w *Worker) adoptHolder(f rdma.Fabric, c rdma.ClientID) error {
	list, err := rdma.ListClients(f)
	if err != nil {
		return err
	}
	// The claim is looked at like a lock: its owner is the client that recovers
	// c.
	claim, _, err := w.look(w.log(c).Add(claimAt), 0)
	if err != nil || !claim.Held() {
		return err
	}
	for _, o := range list {
		if o.ID == claim.owner() && o.ID != c && !o.Alive {
			return w.Adopt(f, o)
		}
	}
	return nil
}

// clientState is what a client has left, as it was read.
type clientState struct {
	// ended is the sequence up to which its transactions are over.
	ended uint64
	// used is as high as any sequence of the client.
	used uint64
	// lock is that of the record.
	lock Version
	// entries are those of a record that is to be replayed; nil: there is none.
	entries []byte
	chunks  []chunks.Chunk
}

// recover is Recover. Under the claim, still reports whether the client is the
// one that was meant; nil: no other client recovers it at the same time. A later
// holder of the identity begins by a claim of its own, so what is read after still
// stays as it is.
//
// The claim is kept until no verb of the recovery is in flight. Otherwise another
// client could replay the log while a WRITE of this worker lands late, over what
// a third client has committed. A WRITE of a replay that failed may land until a later
// try has replayed the log, so that try yields the claim. A crash leaves the claim,
// which is free when this worker is recovered itself.
func (w *Worker) recover(c rdma.ClientID, still func() (bool, error)) error {
	if c == 0 || int(c) > w.Clients {
		return fmt.Errorf("recover client %d of 1 to %d: %w", c, w.Clients, rdma.ErrAccess)
	}
	if w.view.Gone(w.log(c).Node()) {
		return w.recoverLost(c)
	}
	// A WRITE of an earlier try, under a claim of this worker's, may be in
	// flight.
	if err := w.land(); err != nil {
		return err
	}
	claim, err := w.claim(c)
	if err != nil {
		return fmt.Errorf("recover client %d: %w", c, err)
	}
	err = w.recoverClaimed(c, claim, still)
	at := w.log(c).Add(claimAt)
	if landed := w.land(); landed != nil {
		if !w.unreplayed[c] {
			w.pendingReleases = append(w.pendingReleases, swap{at, claim, claim.written()})
		}
		return errors.Join(err, landed)
	}
	if err == nil {
		delete(w.unreplayed, c)
	}
	if w.unreplayed[c] {
		return fmt.Errorf("recover client %d: %w", c, err)
	}
	_, _, yielded := w.trips.Swap(stepYieldLog, at, uint64(claim), uint64(claim.written()))
	if yielded != nil {
		w.pendingReleases = append(w.pendingReleases, swap{at, claim, claim.written()})
	}
	if err = cmp.Or(err, yielded); err != nil {
		return fmt.Errorf("recover client %d: %w", c, err)
	}
	return nil
}

// recoverLost gives back the chunks of a client that has lost its log with a
// node. What it has locked stays locked.
func (w *Worker) recoverLost(c rdma.ClientID) error {
	// The client's chunks are read from the tables, since its log is lost.
	list, err := w.chunksOf(c)
	if err != nil {
		return fmt.Errorf("recover client %d: %w", c, err)
	}
	return w.memory.table.Free(&w.chunks, list)
}

// claim makes this worker the only one that recovers a client. Two that replay a
// log at the same time could WRITE over what others have committed since. A claim
// is a lock, and is free like one when its owner was recovered itself.
//
// If the CAS of the claim has an unknown outcome, its release is pending.
func (w *Worker) claim(c rdma.ClientID) (Version, error) {
	n, err := w.number()
	if err != nil {
		return 0, err
	}
	at, mine := w.log(c).Add(claimAt), lockOf(w.id, n)
	now, _, err := w.look(at, 0)
	if err != nil {
		return 0, err
	}
	// A claim of this worker's own is that of a recovery that failed, and nothing
	// of it is in flight. A claim of the client's own is from when it was opened.
	// That client is fenced off, or else it is a later holder, to which what
	// follows does nothing.
	if now.Held() && now.owner() != w.id && now.owner() != c {
		_, ended, err := w.look(at, now.owner())
		if err != nil {
			return 0, err
		}
		if ended < now.sequence() {
			return 0, fmt.Errorf("by client %d: %w", now.owner(), errClaimed)
		}
	}
	_, ok, err := w.trips.Swap(stepClaim, at, uint64(now), uint64(mine))
	if err != nil {
		// A claim that is kept is not released: the next try takes it, by whichever word.
		if !w.unreplayed[c] {
			w.pendingReleases = append(w.pendingReleases, swap{at, mine, mine.written()})
		}
		return 0, err
	}
	if !ok {
		return 0, errClaimed
	}
	return mine, nil
}

// recoverClaimed does the recovery, under the claim. The order matters: a commit
// is replayed before the client's transactions are over, and these are over
// before its chunks are given back. Otherwise locks would be released on objects
// with old data, or another client would make objects at places that a replay
// still writes.
func (w *Worker) recoverClaimed(c rdma.ClientID, claim Version, still func() (bool, error)) error {
	if still != nil {
		// Otherwise another client has recovered it.
		if meant, err := still(); err != nil || !meant {
			return err
		}
	}
	// The batch has the record, of which the entries are a part. It is not
	// released before they are replayed.
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	e, err := w.survey(b, c)
	if err != nil {
		return err
	}
	if e.entries != nil {
		if err := w.replay(e.entries, e.lock); err != nil {
			if still != nil {
				w.unreplayed[c] = true
			}
			return err
		}
	}
	end := e.used
	// This is an earlier holder of the worker's own identity. The worker's claim
	// itself is not over.
	if c == w.id {
		end = claim.sequence() - 1
	}
	// From here on all locks of the client are released on sight.
	if end > e.ended {
		before, ok, err := w.trips.Swap(stepEnd, w.log(c).Add(endedAt), e.ended, end)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("transactions are over up to %d, not %d, under a claim: %w", before, e.ended,
				client.ErrDamaged)
		}
	}
	w.stats.Recovered++
	return w.memory.table.Free(&w.chunks, e.chunks)
}

// survey reads what a client has left. Its ceiling is as high as any sequence
// that it has used. The entries lie in the batch.
func (w *Worker) survey(b *rdma.Batch, c rdma.ClientID) (e clientState, err error) {
	ended, op := b.Read(w.log(c).Add(endedAt), 8), w.readRecord(b, c)
	if err := w.trips.Do(stepReadLog, b); err != nil {
		return e, fmt.Errorf("read the log: %w", err)
	}
	e.ended = ended.Word(0)
	// A record of a transaction that is over was replayed, or is that of an
	// earlier one. A torn record never decided.
	lock, entries, whole := openRecord(op.Buf)
	if whole && lock.owner() == c && lock.sequence() > e.ended {
		e.lock, e.entries = lock, entries
	}
	numbers, err := kit.OpenNumbers(w.ceiling(c), 0)
	if err != nil {
		return e, err
	}
	e.used = numbers.Used()
	e.chunks, err = w.chunksOf(c)
	return e, err
}

// replay finishes a commit for which the log is whole. An object that has not the
// transaction's lock any more has its body, since the lock is released behind the
// WRITE. No other client replays at the same time: see claim.
func (w *Worker) replay(entries []byte, lock Version) error {
	locks := w.ep.Batch()
	defer w.trips.Drop(locks)
	for rest := entries; len(rest) > 0; {
		var r Ref
		r, _, rest = nextEntry(rest)
		at, _ := w.Object(r)
		locks.Read(at, 8)
	}
	if err := w.trips.DoWhereLeft(stepReadLocks, locks, w.view); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	b := w.ep.Batch()
	defer w.trips.Drop(b)
	for i, rest := 0, entries; len(rest) > 0; i++ {
		var r Ref
		var p []byte
		r, p, rest = nextEntry(rest)
		if op := locks.Op(i); op.Err == nil && Version(op.Word(0)) == lock {
			w.addBody(b, r, p, lock)
		}
	}
	if b.Len() > 0 {
		w.stats.Replayed++
	}
	if err := w.trips.DoWhereLeft(stepReplay, b, w.view); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

// chunksOf reads which chunks a client has, on all nodes that are not gone.
func (w *Worker) chunksOf(c rdma.ClientID) (list []chunks.Chunk, err error) {
	for n := range w.Nodes {
		if w.view.Gone(n) {
			continue
		}
		some, err := w.memory.table.Of(&w.chunks, n, c)
		if err != nil {
			return nil, err
		}
		list = append(list, some...)
	}
	return list, nil
}
