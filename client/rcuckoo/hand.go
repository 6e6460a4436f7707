package rcuckoo

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// A hand is a client's record of the extents of a class in a shard that it claims next: their
// number, and a ref each, with the stamp that the claim gives. It lands before the claims do, so it has every
// extent that the client has claimed and that no row names yet. When it is torn nothing of it was
// claimed yet; what it named before was taken by then, and the operations were over.
//
// When a client is gone, which means that it is fenced off and that repair has brought its
// operations to their ends, the client that recovers it frees what its hand names and no row does:
//
//   - a use whose mark says that it goes on: it is the client's, as its stamp says, and the client's alone;
//   - and which neither of the rows of the key in it names. Refs are copied only from row to row, so what no row names once is
//     never named again. An extent that a row names is whole, so that the key in it is the key's; what is torn, or was not
//     written, has any key, and may be looked for in any rows.
//
// Rows are looked at twice. If both looks find the same versions then between them neither row
// changed, and so the ref was in none of them at one moment: it cannot have been moved past the
// reader. (Of a table that grows they are the key's two rows by their own levels: see levels.go.)
// Done again, by any client, all of this changes nothing.
const (
	handRefs  = 8
	handBytes = handRefs + claimAtOnce*refBytes // of a class

	// rowLooks bounds how often rows are looked at that are torn, or change all the time; and once
	// more for each level on the way to them. Pauses grow up to a millisecond.
	rowLooks = 20
)

var betweenLooks = kit.Doubling(time.Microsecond, time.Millisecond)

// handsBytes is how many bytes all of a client's hands have: one of each class, and the record of
// units whose class it changes, see carve.go.
func (l *layout) handsBytes() uint64 {
	if l.Classes == 1 {
		return handBytes
	}
	return uint64(l.Classes+1) * handBytes
}

// eachHand calls f with what each of a client's hands names, by class; last of all, of a pool that
// has classes, with the units whose class it changes.
func (l *layout) eachHand(p []byte, f func(class int, p []byte) error) error {
	for class := 0; len(p) > 0; class, p = class+1, p[handBytes:] {
		if err := f(class, p[:handBytes]); err != nil {
			return err
		}
	}
	return nil
}

// addHand adds the WRITE of the client's hand of a class: step 1.
func (x *extents) addHand(b *rdma.Batch, shard, class int, refs []ref) {
	p := b.Alloc(handRefs + len(refs)*refBytes)
	le.PutUint64(p, uint64(len(refs)))
	for i, r := range refs {
		r.encode(p[handRefs+i*refBytes:])
	}
	b.Write(x.handAt(shard, x.id, class), p)
}

// handOf returns what a hand names.
func (l *layout) handOf(p []byte) (refs []ref) {
	for i := range min(le.Uint64(p), claimAtOnce) {
		if r := decodeRef(p[handRefs+i*refBytes:]); l.names(r, 0) {
			refs = append(refs, r)
		}
	}
	return refs
}

// leave gives back what a client has claimed in a shard and no row names: the client itself, when
// it closes, or the one that recovers one that is gone. It returns how many extents that were.
func (x *extents) leave(shard int, c rdma.ClientID) (n int, err error) {
	if !x.extents() {
		return 0, nil
	}
	until := x.ep.Now() + x.timeout
	if c != x.id {
		return x.reclaim(shard, c, until)
	}
	if err := x.resolve(shard, until); err != nil {
		return 0, err
	}
	return x.endHands(shard, -1, until)
}

// endHands gives back what the client has in its hands, but for that of a class.
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

// resolve finds out what became of extents that are unresolved.
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

// reclaim frees what the hands of a client name that is gone, once the classes of the units are
// settled that it was changing.
func (x *extents) reclaim(shard int, c rdma.ClientID, until time.Duration) (n int, err error) {
	b := x.ep.Batch()
	defer b.Release()
	read := b.Read(x.handAt(shard, c, 0), int(x.handsBytes()))
	read.Fence = true // claims of the client's own may be on their way still, if it is the client itself
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

// suspect is an extent that may have no user.
type suspect struct {
	ref
	at            place
	key           []byte // in the batch that read it
	look          bool   // the versions are those of a look at both rows
	first, second uint64
}

var errBusyRows = errors.New("their rows change all the time")

// rescue frees those of some uses that no row names. There are no more than fit a hand at once.
func (x *extents) rescue(shard int, refs []ref, until time.Duration) (n int, err error) {
	if len(refs) == 0 {
		return 0, nil
	}
	b := x.ep.Batch()
	defer b.Release()
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
		case le.Uint64(b.Op(2*i).Buf) != mark(r.stamp, true): // it was never claimed, or its use has ended
		default:
			key := p[keyAt:]
			if length := le.Uint64(p[lengthsAt:]) >> 32; length <= uint64(len(key)) {
				key = key[:length]
			}
			suspects = append(suspects, suspect{ref: r, at: x.place(key), key: key})
		}
	}
	for look := 0; len(suspects) > 0 && look < rowLooks+x.Levels; look++ {
		if look > 1 { // another client is at work there
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

// look reads the rows of suspects once more. It returns those of which nothing is known yet, and
// adds to those that no row names.
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

// inUse reports whether a valid row names a use.
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

// end ends uses.
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
