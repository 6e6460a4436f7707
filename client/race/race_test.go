package race_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

// TestWord: a word gives back what it was packed from, and its other forms are what they say.
func TestWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		print := rapid.Uint8().Draw(t, "print")
		units := rapid.IntRange(1, race.MaxUnits).Draw(t, "units")
		unit := rapid.Uint64Max(race.MaxSpace-1).Draw(t, "unit")
		tag := rapid.Uint64Max(1<<race.MaxTagBits-1).Draw(t, "tag")
		w := race.Pack(print, units, unit, tag)
		for _, x := range []race.Word{w, w.Pending()} {
			if x.Print() != print || x.Unit() != unit || x.Tag() != tag {
				t.Fatalf("%v of print %d, unit %d, tag %d", x, print, unit, tag)
			}
		}
		if !w.Live() || w.Empty() || w.Units() != units {
			t.Fatalf("%v is no pair of %d units", w, units)
		}
		if p := w.Pending(); p.Live() || p.Empty() || !p.IsPending() || p.Final() != w {
			t.Fatalf("%v is not pending", p)
		}
		client, n := rdma.ClientID(rapid.Uint16Min(1).Draw(t, "client")), rapid.Uint32().Draw(t, "n")
		if d := race.Tombstone(print, client, n); d.Live() || !d.Empty() || d.IsPending() || d.Print() != print ||
			d == 0 {
			t.Fatalf("%v is no tombstone", d)
		}
	})
}

func index(groups uint64) *race.Index {
	return &race.Index{Base: 4096, Groups: groups, Place: node.Place(4, 2, 3, 4)}
}

// TestLocate: a key's buckets lie in one subtable, in two groups; all candidates are slots of the
// index, and different.
func TestLocate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := index(rapid.Uint64Range(2, 50).Draw(t, "groups"))
		hash := rapid.Uint64().Draw(t, "hash")
		n := 0
		for s := range race.Slot(x.Words()) {
			if x.Candidate(hash, s) {
				n++
			}
		}
		if n != race.Candidates {
			t.Fatalf("hash %#x has %d candidates", hash, n)
		}
		at := x.Locate(hash)
		if per := race.Slot(x.Words() / 4); at[0]/per != at[1]/per || at[0]/24 == at[1]/24 {
			t.Fatalf("hash %#x is at %v", hash, at)
		}
	})
}

// TestSpread: keys use all groups and both halves about evenly.
func TestSpread(t *testing.T) {
	x := index(25)
	const keys = 100_000
	use := map[race.Slot]int{}
	for i := range keys {
		for _, s := range x.Locate(race.Hash(fmt.Appendf(nil, "user%d", i))) {
			use[s]++
		}
	}
	want := 2 * keys / (4 * 25 * 2)
	for s, n := range use {
		if n < want*8/10 || n > want*12/10 {
			t.Errorf("bucket %d is used %d times, not about %d", s, n, want)
		}
	}
	if len(use) != 4*25*2 {
		t.Errorf("%d combined buckets are used", len(use))
	}
}

// TestFill: with both halves to choose from, an index takes pairs until it is nearly full (RACE:
// over 80 % of its slots), and a view names the slots that hold them.
func TestFill(t *testing.T) {
	x := index(40)
	f, err := shm.NewMem(shm.Geometry{Nodes: 3, Memory: 1 << 20, Clients: 4}, node.Serve)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ep, err := f.Open("fill")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	n := uint64(0)
	for ; ; n++ {
		hash := race.Hash(fmt.Appendf(nil, "user%d", n))
		b := ep.Batch()
		v := x.Read(b, x.Locate(hash), 1)
		if err := rdma.Do(ep, b, rdma.Forever); err != nil {
			t.Fatal(err)
		}
		s, w, room := v.Free(hash)
		b.Release()
		if room == 0 {
			break
		}
		if !x.Candidate(hash, s) || w != 0 {
			t.Fatalf("slot %d with %v for hash %#x", s, w, hash)
		}
		b = ep.Batch()
		word := b.Alloc(8)
		binary.LittleEndian.PutUint64(word, uint64(race.Pack(race.Print(hash), 1, n, 0)))
		b.Write(x.Address(s, 1), word)
		if err := rdma.Do(ep, b, rdma.Forever); err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	if load := float64(n) / float64(x.Slots()); load < 0.75 {
		t.Errorf("full at %.0f %% of %d slots", 100*load, x.Slots())
	} else {
		t.Logf("full at %.0f %% of %d slots", 100*load, x.Slots())
	}
}
