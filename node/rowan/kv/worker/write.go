package worker

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/shards"
)

// key is a key with writes in progress. Its writes take versions in the order in which they came.
// Each of them is decided by what the one before leaves, which may still be in flight. A write that
// is refused is answered when the write that decided it is on all replicas, so that no answer shows
// what a crash may undo.
//
// The steps of a write, each behind the one before:
//
//	queue   it waits for the writes ahead of it, and until it is known whether the key exists
//	decide  it is refused, or room is reserved at all replicas and a version is taken
//	flying  its entry is in flight to the worker's log and to all backups
//	done    all have acknowledged it: it is durable on all replicas
//	apply   the index names its entry, unless that of a later version is named
//	finish  it is answered, and the writes that were refused because of it are
//
// A GET that goes by the index sees a write from apply on. So it sees nothing that a crash may
// undo.
type key struct {
	hash uint64
	// The shard's index.
	index *index.Index
	// The key's own bytes, a copy.
	bytes []byte

	// READs of what the index names; nil: none is in flight.
	look *rdma.Batch
	// The offsets that the index names with the key's tag. Without item, these are of other keys.
	seen []uint64
	// The offset that the index names for the key, if fresh; 0: none.
	item uint64
	// Bytes of its segment that the item's entry takes.
	size int64
	// Kind of the item's entry.
	kind uint8
	// seen, item, size and kind are as the index has them, unless another task changes it.
	fresh bool
	// What is being READ was looked up before a cleaner's question: it must be looked up again.
	late bool
	// The offset of a damaged entry that may be the key's; 0: there is none.
	damaged uint64
	// there is known.
	decided bool
	// How it is learned in a migration.
	routing routing
	// The key exists once all writes with a version are done.
	there bool

	// The highest version that the worker has put into the index.
	version uint64
	// Writes without a version, in their order.
	queue []*op
	// Writes with a version that are not on all replicas, in the order of their versions.
	flying []*op
	// Writes that are on all replicas and not in the index.
	done []*op
}

// write is the part of an op that only a write has.
type write struct {
	// 0: it has none yet.
	version uint64
	// The WRITE to the worker's own log and the READ behind it, with the appends of rings; nil: it
	// is not in flight. The op owns it.
	local *rdma.Batch
	// Where its entry lies in that log, and how many bytes it takes.
	segment rowan.Segment
	at      uint64
	size    int64
	// One for each backup.
	appends []appending
	// Writes that were refused because of this one. They are answered behind it.
	followers []*op
}

// changes reports whether a procedure is a write.
func changes(proc uint16) bool {
	return proc == kv.ProcInsert || proc == kv.ProcUpdate || proc == kv.ProcDelete
}

// kind returns the kind of a write's entry.
func (o *op) kind() uint8 {
	if o.proc == kv.ProcDelete {
		return kv.Del
	}
	return kv.Put
}

// flies reports whether the write is in flight to the replicas.
func (o *write) flies() bool { return o.local != nil }

// enqueue puts a write behind the other writes of its key, and starts what can be started.
func (w *Worker) enqueue(o *op) error {
	// There are few keys with writes in progress, so a search is cheaper than a map.
	for _, k := range w.keys {
		if k.hash == o.hash && bytes.Equal(k.bytes, o.key) {
			o.on = k
		}
	}
	if o.on == nil {
		o.on = w.newKey(o)
	}
	// The order of the queue is the order of the versions.
	o.on.queue = append(o.on.queue, o)
	return w.advance(o.on, o.since)
}

// newKey returns a key for its first write, with the buffers of an earlier one if possible.
func (w *Worker) newKey(o *op) *key {
	n := len(w.spareKeys)
	if n == 0 {
		w.spareKeys, n = append(w.spareKeys, new(key)), 1
	}
	k := w.spareKeys[n-1]
	w.spareKeys = w.spareKeys[:n-1]
	*k = key{
		hash: o.hash, index: o.index, bytes: append(k.bytes[:0], o.key...), seen: k.seen[:0], queue: k.queue[:0],
		flying: k.flying[:0], done: k.done[:0],
	}
	// It stays there until its last write was answered.
	w.keys = append(w.keys, k)
	return k
}

// advance continues the writes of a key as far as possible: it puts those that are on all replicas
// into the index, then decides those without a version. A key without writes is dropped.
func (w *Worker) advance(k *key, now time.Duration) error {
	for len(k.done)+len(k.queue) > 0 {
		// Both apply and decide need to know what the index names for the key.
		if !k.fresh {
			if ok, err := w.find(k); !ok {
				return err
			}
		}
		if len(k.done) > 0 {
			if !w.apply(k, k.done[0]) {
				// Nothing was changed in this case: the index compares and swaps.
				k.fresh = false // a cleaner moved the entry, or another key with this tag was inserted
				continue
			}
			o := k.done[0]
			k.done = slices.Delete(k.done, 0, 1)
			if err := w.finish(o); err != nil {
				return err
			}
			continue
		}
		o := k.queue[0]
		// The writes behind it wait too, even if there were room for them: their order is that of
		// their versions.
		if done, err := w.decide(k, o, now); !done {
			return err
		}
		k.queue = slices.Delete(k.queue, 0, 1)
	}
	// A READ in flight has the key's buffers in use.
	if len(k.flying) == 0 && k.look == nil {
		k.routing.drop()
		w.keys = slices.DeleteFunc(w.keys, func(other *key) bool { return other == k })
		w.spareKeys = append(w.spareKeys, k)
	}
	return nil
}

// find looks up what the index names of the key. It reports false if READs are in flight.
func (w *Worker) find(k *key) (ok bool, err error) {
	if k.look == nil {
		// More than one offset has the tag if keys collide. Each of them is READ, and its key
		// compared.
		k.seen = k.index.Lookup(k.hash, k.seen[:0])
		if err := w.readFor(k, max(w.reach, kv.HeadBytes+len(k.bytes))); err != nil {
			return false, err
		}
	}
	// Without an offset nothing was posted.
	if len(k.seen) > 0 && !k.look.Finished() {
		return false, nil
	}
	b := k.look
	k.look = nil
	defer b.Release()
	again, e := w.ended(b.Err())
	if err := b.Err(); err != nil && (!again || e != nil) {
		return false, errors.Join(err, e)
	}
	// The view has changed, or a cleaner has asked since: the entry may have been moved, and its
	// segment may be freed once the worker passes the question.
	if again || k.late {
		k.late = false
		return w.find(k)
	}
	// Only this worker names new writes of the key. If another task has moved the entry since, or
	// has named one, apply fails and the key is looked up again.
	f, more, damaged := w.match(b, k.seen, k.bytes)
	if more > 0 {
		if err := w.readFor(k, more); err != nil {
			return false, err
		}
		return w.find(k)
	}
	ok = f.At != 0 // with a damaged entry it is 0: the key's next entry is named beside that one
	k.item, k.size, k.fresh, k.damaged = 0, 0, true, damaged
	if ok {
		k.item, k.size, k.kind = f.At, kv.EntrySize(f.Length), f.Kind
	}
	// In a migration a key that is not found here may be at the source: see learnThere.
	if !k.decided && damaged == 0 && (ok || k.queue[0].source == shards.None) {
		k.decided, k.there = true, ok && f.Kind == kv.Put
	}
	return true, nil
}

// readFor posts READs of n bytes of each entry that the index names with the key's tag.
func (w *Worker) readFor(k *key, n int) error {
	k.look = w.ep.Batch()
	// The batch owns the buffers until find releases it.
	w.s.ReadEntries(k.look, k.seen, n)
	if len(k.seen) == 0 {
		return nil
	}
	return w.ep.Post(k.look.As("look up"))
}

// decide answers a write that is refused, or gives it a version and posts it. It reports false if
// the write has to wait: for room, for Holds at most, or for an answer of a backup or of the source
// of a migration, for FullAfter. Then it is refused: with StatusFull if a log said that it is full,
// with StatusWait if one has not answered.
func (w *Worker) decide(k *key, o *op, now time.Duration) (done bool, err error) {
	if !k.decided && k.damaged != 0 {
		return true, w.refuseDamaged(o, k.damaged)
	}
	if !k.decided {
		switch ok, err := w.learnThere(k, o, now); {
		case err != nil:
			return false, err
		case !ok && now-o.since >= w.s.Opt.FullAfter:
			return true, w.answer(o, kv.StatusWait)
		case !ok:
			return false, nil
		}
	}
	switch {
	case o.proc == kv.ProcInsert && k.there:
		return true, w.follow(k, o, kv.StatusExists)
	case o.proc != kv.ProcInsert && !k.there:
		return true, w.follow(k, o, kv.StatusNotFound)
	}
	// It is the first one without a version, so all that decide it have theirs.
	err = w.send(o, now)
	switch {
	case err == nil:
		// It holds for the writes behind this one, though this one is still in flight. If it ends
		// up nowhere, the server is gone, and so are those.
		k.there = o.proc != kv.ProcDelete
		k.flying = append(k.flying, o)
		return true, nil
	case !errors.Is(err, rdma.ErrFull) && !errors.Is(err, errAway):
		return false, err
	case now-o.since >= w.s.Opt.FullAfter && errors.Is(err, errAway):
		return true, w.answer(o, kv.StatusWait)
	case now-o.since >= w.s.Opt.Holds() && errors.Is(err, rdma.ErrFull):
		return true, w.answer(o, kv.StatusFull)
	}
	// Room may come from a cleaner, or from a backup's grant. Neither of them wakes the worker.
	w.again(now + state.RetryPause)
	return false, nil
}

// follow answers a refused write once the write that decided it is on all replicas and in the
// index: at once if none is in flight.
func (w *Worker) follow(k *key, o *op, status uint16) error {
	o.status = status
	o.shard.Count()
	// The last one in flight has decided it. Writes of one key are acknowledged in any order, but
	// each is put into the index before its followers are answered.
	if n := len(k.flying); n > 0 {
		k.flying[n-1].followers = append(k.flying[n-1].followers, o)
		return nil
	}
	return w.answer(o, status)
}

// send posts a write to all replicas in one batch: to the worker's log, with a READ behind it, and
// to the logs of the backups.
//
// Room is reserved everywhere before the version is taken, since CommitVer waits for each version
// that was given. A crash behind the post leaves the entry on some of the replicas, and no answer
// that it was done. The next term gives it to the others.
func (w *Worker) send(o *op, now time.Duration) error {
	del, keep := o.proc == kv.ProcDelete, w.s.Opt.Keep
	if del {
		keep, o.value = w.s.Opt.Spared(), nil
	}
	// The length is known before the version is: the version takes the same bytes in any record.
	n := kv.RecordSize(o.key, o.value)
	if err := w.log.Reserve(n, keep); err != nil {
		return err
	}
	// Reserve may have left a segment.
	w.full()
	// Replicas that still copy the shard are among them: what is written meanwhile must not be
	// missing there.
	for i, node := range w.term.Others[o.shard.Number] {
		o.appends = append(o.appends, appending{node: node})
		if err := w.backups.reserve(&o.appends[i], n, del); err != nil {
			o.appends = o.appends[:i]
			w.unreserve(o, n)
			return err
		}
	}
	// From here on nothing may fail without ending the worker: CommitVer waits for the version.
	// The order of versions is that of the calls of Next of this shard, over all workers.
	version, ok := o.shard.Next()
	if !ok {
		w.unreserve(o, n)
		return rdma.ErrFull
	}
	o.version = version
	// One batch: one doorbell a node, and one trip.
	b := w.ep.Batch()
	b.Chain()
	// Add copies the record into the batch, so the buffer may be used again for the backups.
	kind, record := w.encode(o)
	segment, at := w.log.Add(b, kind, uint32(o.term), record)
	o.segment, o.at, o.size, o.local = segment, at.Offset(), kv.EntrySize(n), b
	// It counts from now on, though nothing names it yet: the segment is neither free nor full of
	// garbage.
	w.s.Space.Place(segment.Index, o.size)
	// The segment is not closed before this write has gone to the index, or was superseded.
	w.fill(segment)
	for i := range o.appends {
		if err := w.backups.add(b, o, &o.appends[i], now); err != nil {
			return err
		}
	}
	// Chains fail each by itself: goOn repeats an append, and rewrite the local WRITE.
	return w.ep.Post(b.As("replicate"))
}

// encode returns the kind and the record of a write. The record is in the worker's buffer until the
// next call.
func (w *Worker) encode(o *op) (kind uint8, _ []byte) {
	n := kv.RecordSize(o.key, o.value)
	// The buffer grows to the longest record that the worker has written.
	if cap(w.buf) < n {
		w.buf = make([]byte, n)
	}
	w.buf = w.buf[:n]
	order := kv.Order{Term: uint32(o.term), Version: o.version}
	r := kv.Record{Order: order, Shard: o.shard.Number, Key: o.key, Value: o.value}
	r.Put(w.buf)
	return o.kind(), w.buf
}

// unreserve gives back the leave for a write that is not sent now.
func (w *Worker) unreserve(o *op, n int) {
	for i := range o.appends {
		w.backups.unreserve(&o.appends[i], n)
	}
	o.appends = o.appends[:0]
}

// replicate continues a write in flight. When all backups that are members have acknowledged it,
// and the local WRITE and its READ have succeeded, its version is done and it goes to the index. A
// backup that is no member any more is skipped: no later configuration has it, with what it has.
func (w *Worker) replicate(o *op, now time.Duration) (err error) {
	// An append that was acknowledged stays so. The others go on independently of each other.
	all := true
	for i := range o.appends {
		a := &o.appends[i]
		switch {
		case a.acked:
		case w.term.Member(a.node) == nil: // it is dead, and no later configuration has it
			w.backups.giveUp(o, a)
			a.acked = true
		default:
			if a.acked, err = w.backups.goOn(o, a, now); err != nil {
				return err
			}
		}
		all = all && a.acked
	}
	// The WRITE and its READ are the first two ops of the batch.
	if !all || !o.local.Completed(0) || !o.local.Completed(1) {
		return nil
	}
	for i := range 2 {
		err := o.local.Op(i).Err
		if again, e := w.ended(err); again {
			return errors.Join(e, w.rewrite(o))
		}
		if err != nil {
			return err // the node is gone, or the worker was fenced off
		}
	}
	o.local.Release()
	o.local = nil
	// Backups digest the entry later; until then it is in a segment that is not committed.
	o.shard.Done(o.version)
	// From here on the write is durable on all replicas: whatever dies now, the next term has it.
	k := o.on
	// Acknowledgments come in any order, so it may be in the middle.
	k.flying = slices.DeleteFunc(k.flying, func(other *op) bool { return other == o })
	k.done = append(k.done, o)
	return w.advance(k, now)
}

// rewrite posts the WRITE to the worker's own log again, to the same place: a new view ended it.
func (w *Worker) rewrite(o *op) (err error) {
	o.local, err = w.repost(o.local)
	return err
}

// repost posts the first WRITE of a batch again, with a READ behind it, and releases the batch.
func (w *Worker) repost(was *rdma.Batch) (*rdma.Batch, error) {
	b := w.ep.Batch()
	b.Chain()
	// Its buffer belongs to the batch, so it is copied before the batch is released.
	first := was.Op(0)
	b.WriteCopy(first.Addr, first.Buf)
	b.Read(first.Addr, 8)
	was.Release()
	return b, w.ep.Post(b.As("rewrite"))
}

// apply makes the index name the entry of a write, unless it names a newer one of the key. It
// reports false if the index has changed since it was looked up: the caller looks it up again.
func (w *Worker) apply(k *key, o *op) bool {
	// A later write of the key was acknowledged earlier. What this one has written is garbage.
	if o.version < k.version {
		return true
	}
	// Insert and Replace do nothing if the index has changed since the lookup.
	x := k.index
	if k.item == 0 && !x.Insert(k.hash, o.at, k.seen) || k.item != 0 && !x.Replace(k.hash, k.item, o.at) {
		return false
	}
	w.s.Space.Add(o.at, o.segment.Index, o.size, o.kind())
	// The entry before is garbage from now on. Its segment is freed when no reader holds it.
	if k.item != 0 {
		w.s.Space.Dead(k.item, w.s.SegmentOf(k.item), k.size, k.kind)
	}
	k.item, k.size, k.kind, k.version = o.at, o.size, o.kind(), o.version
	return true
}

// finish answers a write that is on all replicas and in the index, and then its followers.
func (w *Worker) finish(o *op) error {
	// No answer has been sent yet: a crash here leaves a write that is done and unanswered.
	w.drain(o.segment)
	for _, f := range o.followers {
		if err := w.answer(f, f.status); err != nil {
			return err
		}
	}
	return w.answer(o, kv.StatusOK)
}

// fill counts a write in flight to a segment of the worker's log.
func (w *Worker) fill(seg rowan.Segment) {
	for i := range w.filling {
		if w.filling[i].Segment == seg {
			w.filling[i].writes++
			return
		}
	}
	w.filling = append(w.filling, filling{Segment: seg, writes: 1})
}

// full notes the segments that the log has left.
func (w *Worker) full() {
	for seg, ok := w.log.Full(); ok; seg, ok = w.log.Full() {
		w.fill(seg)
		for i := range w.filling {
			if w.filling[i].Segment == seg {
				w.filling[i].full = true
			}
		}
		// The count that fill has added for the note itself.
		w.drain(seg)
	}
}

// drain notes that a write to a segment is over: it is in the index, or superseded. A full segment
// without other writes in flight is handed over: what the index does not name there is garbage from
// then on.
func (w *Worker) drain(seg rowan.Segment) {
	i := slices.IndexFunc(w.filling, func(f filling) bool { return f.Segment == seg })
	f := &w.filling[i]
	if f.writes--; f.writes == 0 && f.full {
		w.filling = slices.Delete(w.filling, i, i+1)
		w.s.Space.Close(seg)
	}
}
