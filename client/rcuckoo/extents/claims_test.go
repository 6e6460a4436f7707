package extents

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// name makes a row of a key name a use; its other entries stay.
func name(t testing.TB, x *Client, key []byte, second bool, r table.Ref) {
	t.Helper()
	at := x.table.Place(key)
	n := at.First
	if second {
		n = at.Second
	}
	read := x.ep.Batch()
	defer read.Release()
	op := read.Read(x.table.RowAt(x.table.Leads[at.Shard], n), x.table.RowBytes)
	must(t, rdma.Do(x.ep, read, time.Second))
	write(t, x, func(b *rdma.Batch) {
		p := table.Row(b.Alloc(x.table.RowBytes))
		copy(p, op.Buf)
		x.table.Put(p, x.table.Form.Free(p), x.table.Named(make([]byte, x.table.EntryBytes), key, r))
		sealNext(x.table.Form, p, at.Shard, n)
		b.Write(x.table.RowAt(x.table.Leads[at.Shard], n), p)
	})
}

// TestClaimLists: what a client that is gone had claimed becomes free, except what rows name. So do
// unresolved extents, and those of an identity that gets a new holder before it was recovered.
func TestClaimLists(t *testing.T) {
	p := small()
	p.Shards, p.Slabs, p.SlabExtents = 1, 2, 31
	l, v := homestead(t, p, 1)
	x := extentsOn(t, l, v)
	named := map[uint64]bool{}
	use := func(i int) table.Ref {
		r, err := takeNow(x, 0, 5)
		must(t, err)
		key := []byte{'k', byte(i)}
		switch i % 5 {
		case 0: // the value is not written
		case 1: // the value is written, and no row
			write(t, x, func(b *rdma.Batch) { l.AddValue(b, 0, r, key, []byte("value")) })
		case 2: // the key's rows name another use
			write(t, x, func(b *rdma.Batch) { l.AddValue(b, 0, r, key, []byte("value")) })
			name(t, x, key, i%2 == 0, table.Ref{Extent: r.Extent, Length: r.Length, Stamp: r.Stamp + 1})
		default:
			write(t, x, func(b *rdma.Batch) { l.AddValue(b, 0, r, key, []byte("value")) })
			name(t, x, key, i%2 == 0, r)
			named[r.Extent] = true
		}
		return r
	}
	var doubts []table.Ref
	for i := range 25 {
		doubts = append(doubts, use(i))
	}
	keeper := extentsOn(t, l, v)
	for turn, want := range []int{31 - len(named), 0} {
		if n, err := keeper.Leave(0, x.id); n != want || err != nil {
			t.Errorf("turn %d: %d extents are freed of a hand, want %d: %v", turn, n, want, err)
		}
	}
	x = openExtents(l, x.ep) // the identity's next holder
	doubts = doubts[:0]
	for i := 25; i < 50; i++ {
		r := use(i)
		doubts = append(doubts, r)
	}
	for _, r := range doubts {
		x.MarkUnresolved(0, r)
	}
	if n, err := x.Leave(0, x.id); err != nil || n != 31-25 {
		t.Errorf("%d extents are given back: %v", n, err)
	}
	for i := 50; i < 60; i++ {
		use(i)
	}
	// The client dies, and its identity has a new holder, which knows nothing.
	got := takeAll(t, openExtents(l, x.ep), 0)
	for _, r := range got {
		if named[r.Extent] {
			t.Errorf("%+v is in use", r)
		}
	}
	if len(got)+len(named) != 62 {
		t.Errorf("%d extents are free and %d in use, of 62", len(got), len(named))
	}
}

// deaf is an endpoint that does not hear the end of batches of a step, though they have landed.
type deaf struct {
	rdma.Endpoint
	step rdma.Step
}

func (d deaf) Wait(b *rdma.Batch, what int, within time.Duration) error {
	if err := d.Endpoint.Wait(b, what, within); err != nil || b.Step() != d.step {
		return err
	}
	return rdma.ErrTimeout
}

// TestFreeingFails: when a client does not know which of its claims it has given back, it takes
// none of them, as others may have claimed them since.
func TestFreeingFails(t *testing.T) {
	p := small()
	p.Shards, p.Slabs, p.SlabExtents = 1, 1, 31
	l, v := homestead(t, p, 1)
	x, other := extentsOn(t, l, v), extentsOn(t, l, v)
	used := map[uint64]bool{}
	take := func(c *Client, r table.Ref) {
		if used[r.Extent] {
			t.Errorf("client %d takes extent %d, which is in use", c.id, r.Extent)
		}
		used[r.Extent] = true
	}
	_, err := takeNow(x, 0, 5) // no row names it, so it ends with what the client had claimed
	must(t, err)
	heard := x.ep
	x.ep = deaf{heard, steps.FreeExtents}
	if n, err := x.endClaims(0, -1, x.ep.Now()+time.Second); !errors.Is(err, rdma.ErrTimeout) {
		t.Fatalf("%d claims are given back: %v", n, err)
	}
	x.ep = heard
	for _, r := range takeAll(t, other, 0) {
		take(other, r)
	}
	for _, r := range takeAll(t, x, 0) {
		take(x, r)
	}
	if len(used) != 31 {
		t.Errorf("%d of 31 extents are used", len(used))
	}
}

// TestTwoLooks: a use is free only when two looks find both rows whole and unchanged, and neither
// names it.
func TestTwoLooks(t *testing.T) {
	p := small()
	p.Shards = 1
	l, v := homestead(t, p, 1)
	x := extentsOn(t, l, v)
	key := []byte("k")
	at := l.Place(key)
	if at.First == at.Second {
		t.Fatal("the key has one row")
	}
	set := func(n uint32, version uint64, torn bool) {
		write(t, x, func(b *rdma.Batch) {
			r := table.Row(b.Alloc(l.RowBytes))
			clear(r)
			l.Put(r, 0, l.Inline(make([]byte, l.EntryBytes), []byte("other"), nil))
			l.Seal(r, 0, n, version)
			if torn {
				r[1] ^= 1
			}
			b.Write(l.RowAt(l.Leads[0], n), r)
		})
	}
	suspects := []suspect{{Ref: table.Ref{Extent: 3, Stamp: 1}, at: at, key: key}}
	var idle []table.Ref
	for i, look := range []struct {
		first, second uint64 // versions
		torn          int    // row
		known         bool
	}{{first: 1, second: 1}, {first: 1, second: 2}, {first: 2, second: 2}, {first: 2, second: 2, torn: 1},
		{first: 2, second: 2, torn: 2},
		{first: 2, second: 2}, {first: 3, second: 2}, {first: 3, second: 2, known: true}} {
		set(at.First, look.first, look.torn == 1)
		set(at.Second, look.second, look.torn == 2)
		var err error
		suspects, idle, err = x.look(0, suspects, idle, x.ep.Now()+time.Second)
		must(t, err)
		if (len(idle) == 1) != look.known || (len(suspects) == 0) != look.known {
			t.Fatalf("look %d: found free: %v, still looked for: %v", i, idle, suspects)
		}
	}
}

// eager is an endpoint that does something ahead of each batch of a step.
type eager struct {
	rdma.Endpoint
	step rdma.Step
	do   func()
}

func (e eager) Post(b *rdma.Batch) error {
	if b.Step() == e.step {
		e.do()
	}
	return e.Endpoint.Post(b)
}

// TestBusyRows: an extent that no row names is freed though the rows of the key in it change
// between all looks, if it has no value of its use, or if the key has another value.
func TestBusyRows(t *testing.T) {
	p := small()
	p.Shards = 1
	l, v := homestead(t, p, 1)
	key := []byte("hot")
	at := l.Place(key)
	inline := func(r table.Ref) table.Entry { return l.Inline(make([]byte, l.EntryBytes), key, nil) }
	another := func(r table.Ref) table.Entry {
		r.Stamp++
		return l.Named(make([]byte, l.EntryBytes), key, r)
	}
	for _, c := range []struct {
		busy  string
		row   uint32
		entry func(table.Ref) table.Entry
		stamp uint64 // of the content, less than that of the use
	}{
		{"content of an earlier use", at.First, nil, 1},
		{"a value in the first row", at.First, inline, 0},
		{"a value in the second row", at.Second, inline, 0},
		{"another use", at.Second, another, 0},
	} {
		x, other, keeper := extentsOn(t, l, v), extentsOn(t, l, v), extentsOn(t, l, v)
		r, err := takeNow(x, 0, 5)
		must(t, err)
		content := r
		content.Stamp -= c.stamp
		write(t, x, func(b *rdma.Batch) { l.AddValue(b, 0, content, key, []byte("value")) })
		version := uint64(0)
		keeper.ep = eager{keeper.ep, steps.ReadRowsOfExtents, func() {
			write(t, other, func(b *rdma.Batch) {
				row := table.Row(b.Alloc(l.RowBytes))
				clear(row)
				if c.entry != nil {
					l.Put(row, 0, c.entry(r))
				}
				version++
				l.Seal(row, 0, c.row, version)
				b.Write(l.RowAt(l.Leads[0], c.row), row)
			})
		}}
		if n, err := keeper.Leave(0, x.id); n != keeper.want() || err != nil {
			t.Errorf("%s: %d of %d extents are freed: %v", c.busy, n, keeper.want(), err)
		}
	}
}

// TestRowsRest: rows that no key names change between all looks for a while, as rows of hot keys
// do. The extent is freed once they rest, as long as there is time.
func TestRowsRest(t *testing.T) {
	p := small()
	p.Shards = 1
	l, v := homestead(t, p, 1)
	key := []byte("hot")
	at := l.Place(key)
	x, other, keeper := extentsOn(t, l, v), extentsOn(t, l, v), extentsOn(t, l, v)
	r, err := takeNow(x, 0, 5)
	must(t, err)
	write(t, x, func(b *rdma.Batch) { l.AddValue(b, 0, r, key, []byte("value")) })
	version, looks := uint64(0), 0
	keeper.ep = eager{keeper.ep, steps.ReadRowsOfExtents, func() {
		if looks++; looks > 3*rowLooks {
			return
		}
		write(t, other, func(b *rdma.Batch) {
			row := table.Row(b.Alloc(l.RowBytes))
			clear(row)
			version++
			l.Seal(row, 0, at.First, version)
			b.Write(l.RowAt(l.Leads[0], at.First), row)
		})
	}}
	if n, err := keeper.Leave(0, x.id); n != keeper.want() || err != nil {
		t.Errorf("%d of %d extents are freed behind %d looks: %v", n, keeper.want(), looks, err)
	}
}
