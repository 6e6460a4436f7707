package rowan_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// TestStateWord: a word of a segment's state says what was written, and no word that differs from
// one in a bit is one.
func TestStateWord(t *testing.T) {
	if !rowan.IsState(0) {
		t.Error("a segment that was never used has a bad state")
	}
	for st := range 4 {
		for _, owner := range []uint16{0, 1, 7, 1 << 15, 1<<16 - 1} {
			for _, push := range []uint64{1, 2, 77, 1 << 20, 1<<32 - 1} {
				word := rowan.StateWord(st, owner, push)
				if a, b, c, ok := rowan.ParseState(word); !ok || a != st || b != owner || c != push {
					t.Fatalf("state %d of owner %d, push %d, is read as %d, %d, %d, %t", st, owner, push, a, b, c, ok)
				}
				for bit := range 64 {
					if rowan.IsState(word ^ 1<<bit) {
						t.Errorf("state %d of owner %d, push %d: bit %d flips, and it is a state", st, owner, push, bit)
					}
				}
			}
		}
	}
}

// TestFloors: floors that are torn, or damaged, are known to be.
func TestFloors(t *testing.T) {
	const keys = 9
	first, second := []uint64{1, 2, 3, 0, 5, 6, 7, 8, 9}, []uint64{11, 2, 13, 0, 15, 6, 17, 18, 19}
	p, zero := rowan.PutFloors(first), make([]byte, 8*(keys+1))
	q := rowan.PutFloors(second)
	for _, v := range []struct {
		p    []byte
		want []uint64
	}{{zero, make([]uint64, keys)}, {p, first}, {q, second}} {
		if got, ok := rowan.ParseFloors(v.p); !ok || !slices.Equal(got, v.want) {
			t.Errorf("floors %v are read as %v, %t", v.want, got, ok)
		}
		for bit := range 8 * len(v.p) {
			v.p[bit/8] ^= 1 << (bit % 8)
			if _, ok := rowan.ParseFloors(v.p); ok {
				t.Errorf("floors %v: bit %d flips, and nothing is wrong", v.want, bit)
			}
			v.p[bit/8] ^= 1 << (bit % 8)
		}
	}
	for word := 1; word <= keys; word++ {
		torn := slices.Concat(q[:8*word], p[8*word:])
		if slices.Equal(torn, q) {
			continue
		}
		if got, ok := rowan.ParseFloors(torn); ok {
			t.Errorf("torn behind word %d they are %v", word, got)
		}
	}
	if binary.LittleEndian.Uint64(p[8*keys:]) == 0 {
		t.Error("the checksum is zero")
	}
}

// TestDamagedFloors damages the floors of segments. If the receiver may have been about to write
// them, nothing in the segment counts. Otherwise they are needed, and the table is refused. The
// entries of the first segment do not come back in its next use.
func TestDamagedFloors(t *testing.T) {
	l := newFilling(t, false, 0, 0)
	s := l.sender(1, false)
	use := func(segments int) {
		for i := 0; len(l.used) < segments && i < 1000; i++ {
			err := s.Reserve(100)
			if err == nil {
				err = l.land(s, 100) // of one block
			}
			if err != nil && !errors.Is(err, rowan.ErrAsked) {
				t.Fatal(err)
			}
			l.step()
		}
	}
	use(3)
	l.r.Free(l.used[0]) // its floors are written
	use(5)
	look := func() (entries int, err error) {
		table, err := rowan.OpenTable(l.r.Endpoint(), l.o)
		if err == nil {
			err = table.Look(l.r.Endpoint(), func(*rowan.Entry) error { entries++; return nil })
		}
		return entries, err
	}
	all, err := look()
	if err != nil || all == 0 {
		t.Fatalf("%d entries, %v", all, err)
	}
	flip := func(segment int) {
		at := l.o.FloorAt(segment, 1)
		word, err := rdma.ReadWord(l.ep, "read", at, patience)
		if err == nil {
			b := l.ep.Batch()
			b.WriteWord(at, word^2)
			err = rdma.Do(l.ep, b, patience)
			b.Release()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	flip(l.used[0].Index)
	if _, err := look(); !errors.Is(err, rowan.ErrDamaged) {
		t.Errorf("with floors of a free segment damaged: %v", err)
	}
	flip(l.used[0].Index)
	flip(l.used[1].Index)
	some, err := look()
	if err != nil || some >= all || some == 0 {
		t.Errorf("with floors of a used segment damaged: %d entries of %d, %v", some, all, err)
	}
}

// TestCreditDamaged: a source that has more leave than its credit, by its words, keeps none from
// others.
func TestCreditDamaged(t *testing.T) {
	l := newFilling(t, false, 0, 0)
	table, err := rowan.OpenTable(l.r.Endpoint(), l.o)
	if err != nil {
		t.Fatal(err)
	}
	b := l.ep.Batch()
	defer b.Release()
	b.WriteWord(l.o.GrantAt(3), 1<<40)
	if err := rdma.Do(l.ep, b, patience); err != nil {
		t.Fatal(err)
	}
	l.r.Close()
	if l.r, err = table.Receiver(l.r.Endpoint()); err != nil {
		t.Fatal(err)
	}
	left, err := l.r.Recover(func(rowan.Segment, *rowan.Entry) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range left {
		l.r.Free(s)
	}
	l.step()
	if n := l.fill(l.sender(1, false)); n == 0 {
		t.Error("there is no room for another source")
	}
}
