package extents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

var le = binary.LittleEndian

// A client is gone when it is fenced off and repair has completed its operations. The client that
// recovers it frees each use in its claim lists of which two things are true:
//
//   - The mark says that the use goes on. The stamp has the client's identity, so the use is that
//     client's alone.
//   - Neither of the rows of the key in the extent names the use. A ref is copied only from row
//     to row, so once no row names it, none ever will. If a row names the extent, the extent is
//     whole and the key in it is the right one. An extent that is torn has some key or other, and
//     no row names it, whichever rows are read. Nor does any name an extent without the stamp of
//     the use: it is freed without a look.
//
// A row in which the key has another value decides alone, as all entries of a key have one value
// at any moment: moves and divisions copy it, and an UPDATE changes it in one row when no other
// has it. Else rows are looked at twice. If both looks find the same versions, neither row changed
// between them. So at one moment the ref was in neither: it cannot have moved from the row that
// was read later to the one that was read first. (In a table that grows these are the key's two
// rows by their own levels: see levels.go of package table.) All of this may be repeated, by any
// client, and changes nothing then.
//
// rowLooks is how often rows are looked at, at least, that are torn or change all the time: the
// time bounds it, as a look with none left fails. There is one more look for each level, on the way
// to the key's rows.
const rowLooks = 20

// betweenLooks are the pauses after each two looks, which grow up to a millisecond. The two follow
// each other closely, since rows of hot keys rest for a moment only.
var betweenLooks = kit.Doubling(time.Microsecond, time.Millisecond)

// addClaims adds the WRITE of the client's claim list of a class: step 1 in extent.go of package
// table. There are at most ClaimAtOnce refs.
func (x *Client) addClaims(b *rdma.Batch, shard, class int, refs []table.Ref) {
	p := b.Alloc(table.ClaimRefs + len(refs)*table.RefBytes)
	le.PutUint64(p, uint64(len(refs)))
	for i, r := range refs {
		r.Encode(p[table.ClaimRefs+i*table.RefBytes:])
	}
	b.Write(x.table.ClaimsAt(shard, x.id, class), p)
}

// Leave frees what a client has claimed in a shard and no row names, and returns how many extents
// that were. Either the client itself closes, or it is gone and another one recovers it.
func (x *Client) Leave(shard int, c rdma.ClientID) (n int, err error) {
	if !x.table.HasExtents() {
		return 0, nil
	}
	until := x.ep.Now() + x.timeout
	if c != x.id || x.HasClaims(shard) && !x.stocks[shard].opened {
		return x.reclaim(shard, c, until)
	}
	// The client itself knows what it has, unless a batch of claims failed: its claim lists in the
	// pool also name what operations have taken since.
	if err := x.resolve(shard, until); err != nil {
		return 0, err
	}
	return x.endClaims(shard, -1, until)
}

// endClaims frees what the client has in its claim lists, but for that of one class. The claim
// lists in the pool go on naming them, which is harmless: their marks say that the uses have
// ended.
func (x *Client) endClaims(shard, except int, until time.Duration) (n int, err error) {
	st := &x.stocks[shard]
	for class := range st.of {
		if class == except {
			continue
		}
		ended, err := x.end(shard, st.of[class].claimed, until)
		if n += ended; err != nil {
			// It is not known which uses have ended, or will. Take and Leave go by the claim list
			// then.
			st.opened = false
			return n, err
		}
		st.of[class].claimed = st.of[class].claimed[:0]
	}
	return n, nil
}

// resolve frees those unresolved extents that no row names. The operations that took them must be
// over.
func (x *Client) resolve(shard int, until time.Duration) error {
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

// reclaim frees what the claim lists of a client that is gone name, class by class. At last it
// settles the units of which the client was changing the class.
//
// The claim lists stay as they are. So a crash in between leaves the rest to the next client,
// which finds those that are free by their marks.
func (x *Client) reclaim(shard int, c rdma.ClientID, until time.Duration) (n int, err error) {
	b := x.ep.Batch()
	defer b.Release()
	read := b.Read(x.table.ClaimsAt(shard, c, 0), int(x.table.ClaimsBytes()))
	read.Fence = true // if it is the worker's own identity, its own claims may still be in flight
	if err := x.do(steps.ReadClaims, b, until); err != nil {
		return 0, fmt.Errorf("read the claims of client %d in shard %d: %w", c, shard, err)
	}
	err = x.table.EachClaims(read.Buf, func(class int, p []byte) error {
		if class == x.table.Classes {
			return x.finish(shard, c, x.MovesOf(p), until)
		}
		freed, err := x.rescue(shard, x.table.ClaimsOf(p), until)
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
	table.Ref
	at table.Place
	// key is the key in the extent. The batch that read it owns its memory.
	key []byte
	// look: first and second are the versions of both rows at the last look.
	look          bool
	first, second uint64
}

// errBusyRows: no two looks have found the same versions, and none has found the key.
var errBusyRows = errors.New("their rows change all the time")

// rescue frees those of some uses that no row names. There are at most as many as a claim list has,
// so one batch reads them. The error wraps rdma.ErrTimeout when rows change all the time: nothing
// of them is lost, and it may be tried again.
func (x *Client) rescue(shard int, refs []table.Ref, until time.Duration) (n int, err error) {
	if len(refs) == 0 {
		return 0, nil
	}
	b := x.ep.Batch()
	defer b.Release()
	// Mark and content need not be of one moment: if the use ends in between, the CAS that would
	// end it again does nothing.
	for _, r := range refs {
		b.Read(x.table.MarkAt(shard, r.Extent), table.MarkBytes)
		b.Read(x.table.ExtentAt(x.table.Leads[shard], r), int(min(uint64(table.KeyAt+x.table.KeyBytes),
			x.table.SizeOf(x.table.Class(r.Stamp)))))
	}
	if err := x.do(steps.ReadExtents, b, until); err != nil {
		return 0, err
	}
	var idle []table.Ref
	var suspects []suspect
	for i, r := range refs {
		p := b.Op(2*i + 1).Buf
		switch {
		case le.Uint64(b.Op(2*i).Buf) != table.Mark(r.Stamp, true): // the claim failed, or the use has ended
		case le.Uint64(p[table.StampAt:]) != r.Stamp: // the extent has no value of this use
			idle = append(idle, r)
		default:
			// The extent may be torn, so its lengths are not relied on.
			key := p[table.KeyAt:]
			if length := le.Uint64(p[table.LengthsAt:]) >> 32; length <= uint64(len(key)) {
				key = key[:length]
			}
			suspects = append(suspects, suspect{Ref: r, at: x.table.Place(key), key: key})
		}
	}
	for look := 0; len(suspects) > 0 && (look < rowLooks+x.table.Levels || x.ep.Now() < until); look++ {
		if look > 1 && look%2 == 0 { // another client is writing these rows
			x.ep.Sleep(min(betweenLooks(look/2, x.ep.Rand()), max(until-x.ep.Now(), 0)))
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
func (x *Client) look(
	shard int, suspects []suspect, idle []table.Ref, until time.Duration,
) ([]suspect, []table.Ref, error) {
	b := x.ep.Batch()
	defer b.Release()
	for _, u := range suspects {
		b.Read(x.table.RowAt(x.table.Leads[shard], u.at.First), x.table.RowBytes)
		b.Read(x.table.RowAt(x.table.Leads[shard], u.at.Second), x.table.RowBytes)
	}
	if err := x.do(steps.ReadRowsOfExtents, b, until); err != nil {
		return suspects, idle, err
	}
	rest := suspects[:0]
	for i, u := range suspects {
		r1, r2 := table.Row(b.Op(2*i).Buf), table.Row(b.Op(2*i+1).Buf)
		// One whole row that has the key decides. That no row has it takes two whole rows, twice.
		whole1, whole2 := x.table.Valid(r1, shard, u.at.First), x.table.Valid(r2, shard, u.at.Second)
		has1, named1 := x.find(r1, whole1, u)
		has2, named2 := x.find(r2, whole2, u)
		if named1 || named2 {
			continue
		}
		// Follow corrects the place, for the next look.
		both := whole1 && whole2 && x.table.Follow(&u.at, r1, r2)
		if has1 || has2 ||
			both && u.look && x.table.Version(r1) == u.first && x.table.Version(r2) == u.second {
			idle = append(idle, u.Ref)
			continue
		}
		if u.look = both; both {
			u.first, u.second = x.table.Version(r1), x.table.Version(r2)
		}
		rest = append(rest, u)
	}
	return rest, idle, nil
}

// find reports whether a row has the key in a use's extent, and whether it names the use there, by
// its stamp. The stamp tells the use from others of the same extent, which the key may have had
// before. Of a row that is not whole it reports neither.
func (x *Client) find(r table.Row, whole bool, u suspect) (has, named bool) {
	slot := x.table.Find(r, u.key)
	if !whole || slot < 0 || !x.table.Sound(x.table.Entry(r, slot)) {
		return false, false
	}
	e := x.table.Entry(r, slot)
	if !e.Meta.Extent() {
		return true, false
	}
	ref := x.table.Form.Ref(e)
	return true, ref.Extent == u.Extent && ref.Stamp == u.Stamp
}

// end ends uses, and returns how many had not ended before. It is step 8 of extent.go of package
// table for extents that no row names.
func (x *Client) end(shard int, refs []table.Ref, until time.Duration) (n int, err error) {
	if len(refs) == 0 {
		return 0, nil
	}
	b := x.ep.Batch()
	defer b.Release()
	for _, r := range refs {
		x.table.AddMark(b, shard, r)
	}
	if err := x.do(steps.FreeExtents, b, until); err != nil {
		return 0, fmt.Errorf("free %d extents: %w", len(refs), err)
	}
	for i := range refs {
		if b.Op(i).Swapped() {
			n++
		}
	}
	return n, nil
}
