package rcuckoo

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// Check reads the whole pool and reports damage. No client may be at work. It expects that
//
//   - each row is valid, or a client was cut off while it wrote the row, under the row's lock;
//   - each key is in one of its two rows, and in both only if a client was cut off while it moved
//     the key;
//   - each lock that is taken is named by an intent;
//   - each extent that a row names has the value, and each other one is free, or in a client's
//     claim list;
//   - the copies of a shard are equal, except for rows that an operation was cut off in.
//
// What a repair completes is reported as waiting. Check changes nothing, and leaves out shards on
// dead nodes.
//
// While no client is at work, what is read one after the other is of one moment. With clients at
// work, rows and marks that belong together could be read on both sides of a change, and look
// like damage.
func Check(f rdma.Fabric) (r client.Report, err error) {
	ep, err := f.Open("check")
	if err != nil {
		return r, fmt.Errorf("check: %w", err)
	}
	s, err := Open(ep, session.Options{CacheBytes: new(0)}) // it inserts nothing, so it needs no cache
	if err != nil {
		return r, errors.Join(fmt.Errorf("check: %w", err), ep.Close())
	}
	c := checker{s: s, r: &r}
	// A shard that cannot be read does not keep the others from being checked.
	for shard := range s.session.Table.Shards {
		e := c.shard(shard)
		switch {
		case errors.Is(e, rdma.ErrNodeDown) && !s.session.Table.Orphan[shard] && s.session.Table.Replicas > 1:
			r.Waits("the node of shard %d's leader is down: a master makes another copy the leader", shard)
		case e != nil && !errors.Is(e, rdma.ErrNodeDown):
			err = errors.Join(err, fmt.Errorf("check shard %d: %w", shard, e))
		}
	}
	if s.session.Table.Replicas > 1 && s.session.View.Busy {
		r.Waits("the view of epoch %d is busy: no client changes anything until a master has mended the pool",
			s.session.View.Epoch)
	}
	r.Fact("keys", c.keys, c.keys*uint64(s.session.Table.EntryBytes))
	rows := uint64(s.session.Table.Shards)*uint64(s.session.Table.Rows) + c.grown
	r.Fact("entries", rows*uint64(s.session.Table.Slots), rows*uint64(s.session.Table.RowBytes))
	if s.session.Table.Levels > 0 {
		r.Fact("rows that tables grew by", c.grown, c.grown*uint64(s.session.Table.RowBytes))
	}
	if s.session.Table.HasExtents() {
		r.Fact("slabs of extents", c.slabs, c.slabs*s.session.Table.SlabBytes)
		r.Fact("extents that are free", c.free.n, c.free.bytes)
		r.Fact("extents that clients have claimed", c.held.n, c.held.bytes)
	}
	return r, errors.Join(err, ep.Close()) // the Store is not closed: it has claimed and changed nothing
}

// checker has what Check has found.
//
// A finding is damage if no crash can leave it, and waits if the next repair, recovery or
// takeover completes it. What tells them apart is whether an intent, a lease or a claim list
// names the part.
type checker struct {
	s *Store
	r *client.Report

	keys       uint64
	grown      uint64 // rows of later segments that were made
	slabs      uint64 // slabs that were handed out
	free, held tally  // extents

	// The fields below are of the shard at hand.

	// rows are copies of all rows of the leader that have memory, by id.
	rows []table.Row
	// uses are the extents that rows name, by number.
	uses map[uint64]use
	// named are the numbers of rows that have a lock which an intent names: an operation was cut
	// off there.
	named map[uint32]bool
	// begun: there are such operations.
	begun bool
}

// tally counts extents and their bytes.
type tally struct{ n, bytes uint64 }

func (t *tally) add(bytes uint64) { t.n, t.bytes = t.n+1, t.bytes+bytes }

// shard checks one shard. Later checks need what earlier ones found: rows, then locks, then
// entries with the uses that they name, then extents, then the other copies.
func (c *checker) shard(shard int) error {
	s := c.s
	if led, err := c.led(shard); !led || err != nil {
		return err
	}
	c.rows, c.begun = make([]table.Row, 0, s.session.Table.Rows), false
	c.named, c.uses = map[uint32]bool{}, map[uint64]use{}
	// Copies of all rows: an entry is compared with the other row of its key, which may be any
	// row.
	if err := table.EachRow(s.session.Table, s.session.EP, shard, s.session.Table.Leads[shard],
		func(_ uint32, r table.Row) { c.rows = append(c.rows, append(table.Row(nil), r...)) }); err != nil {
		return err
	}
	s.op.Begin()
	// The intents excuse the locks, torn rows and duplicates that are found below.
	if err := s.detector.Look(s.op, shard); err != nil {
		return err
	}
	if err := c.locks(shard); err != nil {
		return err
	}
	if err := c.growth(shard); err != nil {
		return err
	}
	for n := range c.rows {
		c.row(shard, uint32(n))
	}
	if err := c.extents(shard); err != nil {
		return err
	}
	return c.backups(shard)
}

// locks checks the lock words and their leases: an intent must name each lock that is taken (I1),
// unless the word is being repaired.
func (c *checker) locks(shard int) error {
	s := c.s
	// The bits of each word that intents name. A torn intent names none: its client has taken no
	// lock by it (I2).
	claimed := make([]uint64, s.session.Table.LockWords)
	for w := range claimed {
		for claimant := range s.detector.Claimants([]uint32{uint32(w)}) {
			t := s.detector.IntentOf(claimant)
			claimed[w] |= t.Bits(uint32(w))
		}
	}
	// Any intent that is not idle, also a torn one, excuses extents that are used and not named.
	for id := range rdma.ClientID(s.session.Table.Clients) {
		if t := s.detector.IntentOf(id + 1); !table.Idle(t.State) {
			c.begun = true
			c.r.Waits("client %d has an operation in shard %d", id+1, shard)
		}
	}
	// Rows of all segments with a number have its lock.
	for n := range uint32(s.session.Table.Rows) {
		word, bit := s.session.Table.LockOf(n)
		c.named[n] = claimed[word]&(1<<bit) != 0
	}
	for w, bits := range claimed {
		lock, err := s.op.ReadWord(s.session.Table.LockAt(shard, w))
		if err != nil {
			return err
		}
		lease, err := s.op.ReadWord(s.session.Table.LeaseAt(shard, w))
		if err != nil {
			return err
		}
		holder := table.LeaseHolder(lease)
		if holder != 0 {
			c.r.Waits("client %d repairs lock word %d of shard %d", holder, w, shard)
		}
		if lock != 0 {
			c.r.Waits("lock word %d of shard %d is %#x", w, shard, lock)
		}
		// While a word is repaired its other bits may be of no client: see repair.go of package
		// recovery.
		if lock&^bits != 0 && lock&table.LockRepair == 0 {
			c.r.Damaged("lock word %d of shard %d is %#x, and intents name only %#x of it", w, shard, lock, bits)
		}
	}
	return nil
}

// row checks one row, and each of its entries. A torn row waits for repair if an intent names its
// lock, and else is damage.
func (c *checker) row(shard int, n uint32) {
	s, r := c.s, c.rows[n]
	switch {
	case !s.session.Table.Valid(r, shard, n) && c.cut(n):
		c.r.Waits("row %d of shard %d is torn", n, shard)
		return
	case !s.session.Table.Valid(r, shard, n):
		c.r.Damaged("row %d of shard %d is torn, and no client has locked it", n, shard)
		return
	// The entries of a row that is not part of the table are not checked: its parent has them.
	case !c.made(shard, n):
		return
	}
	for slot := range s.session.Table.Slots {
		e := s.session.Table.Entry(r, slot)
		if !s.session.Table.Sound(e) {
			c.r.Damaged("slot %d of row %d of shard %d has an entry that no client can have written", slot, n, shard)
			continue
		}
		if !e.Meta.Used() {
			continue
		}
		c.keys++
		c.entry(shard, n, slot, e)
	}
}

// entry checks that an entry is in one of its key's rows, by its level, and not a second time. A
// key that is in both rows is counted once.
func (c *checker) entry(shard int, n uint32, slot int, e table.Entry) {
	s := c.s
	key := s.session.Table.Key(e)
	at := s.session.Table.Place(key)
	// The hashes give a key two numbers (section 3.3), and its segment bits one row of each.
	if at.Shard != shard || !at.Has(s.session.Table.Number(n)) || !s.session.Table.Belongs(n, at.Bits, c.rows[n]) {
		c.r.Damaged("key %.40q is in row %d of shard %d: it belongs into row %d or %d of shard %d", key, n, shard,
			c.leaf(shard, at.First, at.Bits), c.leaf(shard, at.Second, at.Bits), at.Shard)
		return
	}
	if first := s.session.Table.Find(c.rows[n], key); first != slot {
		c.r.Damaged("key %.40q is in row %d of shard %d twice", key, n, shard)
	}
	if e.Meta.Extent() {
		c.name(shard, n, key, s.session.Table.Ref(e))
	}
	other := c.leaf(shard, at.Other(s.session.Table.Number(n)), at.Bits)
	// Each pair of rows is looked at once, from the lower id.
	if other <= n || !s.session.Table.Valid(c.rows[other], shard, other) ||
		s.session.Table.Find(c.rows[other], key) < 0 {
		return
	}
	// The key was counted here, and is counted once more when the other row is checked.
	c.keys--
	if c.cut(n) && c.cut(other) {
		c.r.Waits("key %.40q is in row %d and in row %d of shard %d", key, n, other, shard)
		return
	}
	c.r.Damaged("key %.40q is in row %d and in row %d of shard %d, and no client is moving it", key, n, other, shard)
}
