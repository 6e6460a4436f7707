package rcuckoo

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// A hand is a client's record of the extents of a class in a shard that it claims next: their
// count, and a ref each, with the stamp that the claim gives. It lands before the claims do. So
// it names every extent that the client has claimed and that no row names yet. If a hand is torn,
// nothing that it was to name is claimed yet. What the hand named before was taken by then, and
// the operations that took it were over.
//
// A client is gone when it is fenced off and repair has completed its operations. The client that
// recovers it frees each use in its hands of which two things are true:
//
//   - The mark says that the use goes on. The stamp has the client's identity, so the use is that
//     client's alone.
//   - Neither of the rows of the key in the extent names the use. A ref is copied only from row
//     to row, so once no row names it, none ever will. If a row names the extent, the extent is
//     whole and the key in it is the right one. An extent that is torn, or was never written, has
//     some key or other, and no row names it, whichever rows are read.
//
// Rows are looked at twice. If both looks find the same versions, neither row changed between
// them. So at one moment the ref was in neither: it cannot have moved from the row that was read
// later to the one that was read first. (In a table that grows these are the key's two rows by
// their own levels: see levels.go.) All of this may be repeated, by any client, and changes
// nothing then.
const (
	// handRefs is the offset of the refs in a hand, and handBytes the size of the hand of one
	// class.
	handRefs  = 8
	handBytes = handRefs + claimAtOnce*refBytes

	// rowLooks bounds how often rows are looked at that are torn, or change all the time. There
	// is one more look for each level, on the way to the key's rows. Pauses grow up to a
	// millisecond.
	rowLooks = 20
)

// betweenLooks are the pauses after the first two looks.
var betweenLooks = kit.Doubling(time.Microsecond, time.Millisecond)

// handsBytes is how many bytes all hands of a client have: one of each class, and the record of
// units that change their class: see carve.go. A pool with one class has no such record.
func (l *layout) handsBytes() uint64 {
	if l.Classes == 1 {
		return handBytes
	}
	return uint64(l.Classes+1) * handBytes
}

// eachHand calls f with each hand of a client, by class. In a pool with several classes the last
// call, with class Classes, has the record of the units that change their class. An error of f
// ends it.
func (l *layout) eachHand(p []byte, f func(class int, p []byte) error) error {
	for class := 0; len(p) > 0; class, p = class+1, p[handBytes:] {
		if err := f(class, p[:handBytes]); err != nil {
			return err
		}
	}
	return nil
}

// addHand adds the WRITE of the client's hand of a class: step 1 in extent.go. There are at most
// claimAtOnce refs.
func (x *extents) addHand(b *rdma.Batch, shard, class int, refs []ref) {
	p := b.Alloc(handRefs + len(refs)*refBytes)
	le.PutUint64(p, uint64(len(refs)))
	for i, r := range refs {
		r.encode(p[handRefs+i*refBytes:])
	}
	b.Write(x.handAt(shard, x.id, class), p)
}

// handOf returns the refs in a hand, but for those that cannot name an extent of the pool: a hand
// may be torn.
func (l *layout) handOf(p []byte) (refs []ref) {
	for i := range min(le.Uint64(p), claimAtOnce) {
		if r := decodeRef(p[handRefs+i*refBytes:]); l.names(r, 0) {
			refs = append(refs, r)
		}
	}
	return refs
}

// leave frees what a client has claimed in a shard and no row names, and returns how many extents
// that were. Either the client itself closes, or it is gone and another one recovers it.
func (x *extents) leave(shard int, c rdma.ClientID) (n int, err error) {
	if !x.extents() {
		return 0, nil
	}
	until := x.ep.Now() + x.timeout
	if c != x.id {
		return x.reclaim(shard, c, until)
	}
	// The client itself knows what it has: its hands in the pool also name what operations have
	// taken since.
	if err := x.resolve(shard, until); err != nil {
		return 0, err
	}
	return x.endHands(shard, -1, until)
}

// endHands frees what the client has in its hands, but for that of one class.
func (x *extents) endHands(shard, except int, until time.Duration) (n int, err error) {
	st := &x.stocks[shard]
	for class := range st.of {
		if class == except {
			continue
		}
		ended, err := x.end(shard, st.of[class].hand, until)
		if n += ended; err != nil {
			return n, err
		}
		st.of[class].hand = st.of[class].hand[:0]
	}
	return n, nil
}

// resolve frees those unresolved extents that no row names. The operations that took them must be
// over.
func (x *extents) resolve(shard int, until time.Duration) error {
	st := &x.stocks[shard]
	if len(st.unresolved) == 0 {
		return nil
	}
	if _, err := x.rescue(shard, st.unresolved, until); err != nil {
		return err
	}
	st.unresolved = st.unresolved[:0]
	return nil
}

// reclaim frees what the hands of a client that is gone name, class by class. At last it settles
// the units of which the client was changing the class.
func (x *extents) reclaim(shard int, c rdma.ClientID, until time.Duration) (n int, err error) {
	b := x.ep.Batch()
	defer b.Release()
	read := b.Read(x.handAt(shard, c, 0), int(x.handsBytes()))
	read.Fence = true // if it is the worker's own identity, its own claims may still be in flight
	if err := x.do(stepReadHand, b, until); err != nil {
		return 0, fmt.Errorf("read the hands of client %d in shard %d: %w", c, shard, err)
	}
	err = x.eachHand(read.Buf, func(class int, p []byte) error {
		if class == x.Classes {
			return x.finish(shard, c, x.movesOf(p), until)
		}
		freed, err := x.rescue(shard, x.handOf(p), until)
		n += freed
		return err
	})
	x.stats.Rescued += uint64(n)
	if err != nil {
		return n, fmt.Errorf("free what client %d had in shard %d: %w", c, shard, err)
	}
	return n, nil
}

// suspect is a use of an extent that may be named by no row.
type suspect struct {
	ref
	at place
	// key is the key in the extent. The batch that read it owns its memory.
	key []byte
	// look: first and second are the versions of both rows at the last look.
	look          bool
	first, second uint64
}

// errBusyRows: no two looks have found the same versions.
var errBusyRows = errors.New("their rows change all the time")

// rescue frees those of some uses that no row names. There are at most as many as a hand has, so
// one batch reads them. The error wraps rdma.ErrTimeout when rows change all the time: nothing of
// them is lost, and it may be tried again.
func (x *extents) rescue(shard int, refs []ref, until time.Duration) (n int, err error) {
	if len(refs) == 0 {
		return 0, nil
	}
	b := x.ep.Batch()
	defer b.Release()
	// Mark and content need not be of one moment: if the use ends in between, the CAS that would
	// end it again does nothing.
	for _, r := range refs {
		b.Read(x.markAt(shard, r.extent), markBytes)
		b.Read(x.extentAt(x.leads[shard], r), int(min(uint64(keyAt+x.KeyBytes), x.sizeOf(x.class(r.stamp)))))
	}
	if err := x.do(stepReadExtents, b, until); err != nil {
		return 0, err
	}
	var idle []ref
	var suspects []suspect
	for i, r := range refs {
		p := b.Op(2*i + 1).Buf
		switch {
		case le.Uint64(b.Op(2*i).Buf) != mark(r.stamp, true): // the claim failed, or the use has ended
		default:
			key := p[keyAt:]
			if length := le.Uint64(p[lengthsAt:]) >> 32; length <= uint64(len(key)) {
				key = key[:length]
			}
			suspects = append(suspects, suspect{ref: r, at: x.place(key), key: key})
		}
	}
	for look := 0; len(suspects) > 0 && look < rowLooks+x.Levels; look++ {
		if look > 1 { // another client is writing these rows
			x.ep.Sleep(min(betweenLooks(look, x.ep.Rand()), max(until-x.ep.Now(), 0)))
		}
		if suspects, idle, err = x.look(shard, suspects, idle, until); err != nil {
			return 0, err
		}
	}
	if n, err = x.end(shard, idle, until); err == nil && len(suspects) > 0 {
		err = fmt.Errorf("look for %d extents in their rows: %w: %w", len(suspects), errBusyRows, rdma.ErrTimeout)
	}
	return n, err
}

// look reads the rows of suspects once more. It returns the suspects that are still undecided,
// and adds those that no row names to idle.
func (x *extents) look(shard int, suspects []suspect, idle []ref, until time.Duration) ([]suspect, []ref, error) {
	b := x.ep.Batch()
	defer b.Release()
	for _, u := range suspects {
		b.Read(x.rowAt(x.leads[shard], u.at.first), x.rowBytes)
		b.Read(x.rowAt(x.leads[shard], u.at.second), x.rowBytes)
	}
	if err := x.do(stepReadRowsOfExtents, b, until); err != nil {
		return suspects, idle, err
	}
	rest := suspects[:0]
	for i, u := range suspects {
		r1, r2 := row(b.Op(2*i).Buf), row(b.Op(2*i+1).Buf)
		// One whole row that names the use decides. That no row names it takes two whole rows,
		// twice.
		whole1, whole2 := x.valid(r1, shard, u.at.first), x.valid(r2, shard, u.at.second)
		if whole1 && x.inUse(r1, u) || whole2 && x.inUse(r2, u) {
			continue
		}
		both := whole1 && whole2 && x.follow(&u.at, r1, r2)
		if both && u.look && x.version(r1) == u.first && x.version(r2) == u.second {
			idle = append(idle, u.ref)
			continue
		}
		if u.look = both; both {
			u.first, u.second = x.version(r1), x.version(r2)
		}
		rest = append(rest, u)
	}
	return rest, idle, nil
}

// inUse reports whether a valid row names a use: by the key in its extent, with its stamp.
func (x *extents) inUse(r row, u suspect) bool {
	slot := x.find(r, u.key)
	if slot < 0 {
		return false
	}
	e := x.entry(r, slot)
	if !x.sound(e) || !e.meta.extent() {
		return false
	}
	named := x.form.ref(e)
	return named.extent == u.extent && named.stamp == u.stamp
}

// end ends uses, and returns how many had not ended before. It is step 8 of extent.go for extents
// that no row names.
func (x *extents) end(shard int, refs []ref, until time.Duration) (n int, err error) {
	if len(refs) == 0 {
		return 0, nil
	}
	b := x.ep.Batch()
	defer b.Release()
	for _, r := range refs {
		x.addMark(b, shard, r)
	}
	if err := x.do(stepFreeExtents, b, until); err != nil {
		return 0, fmt.Errorf("free %d extents: %w", len(refs), err)
	}
	for i := range refs {
		if b.Op(i).Swapped() {
			n++
		}
	}
	return n, nil
}
