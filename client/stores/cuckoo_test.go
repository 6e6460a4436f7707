package stores

import (
	"errors"
	"testing"
)

func TestParseTable(t *testing.T) {
	got := Cuckoo{Levels: 2, Entries: 8}
	if err := ParseTable(&got, "entries=4, key-bytes=32,inline-bytes=0,f=1.9,rows-per-lock=2,lock-bits=8,lock-words=3,rows=100,shards=5"); err != nil {
		t.Fatal(err)
	}
	want := Cuckoo{Levels: 2, Entries: 4, KeyBytes: 32, InlineBytes: -1, F: 1.9, RowsPerLock: 2, LockBits: 8, LockWords: 3, Rows: 100, Shards: 5}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, bad := range []string{"", "entries", "entries=", "entries=0", "entries=-1", "entries=x", "f=0.5", "f=NaN", "f=1e7", "inline-bytes=256", "inline-bytes=-1", "key-bytes=64", "lock-bits=64", "f=x", "levels=2", "entries=4,", "rows=9223372036854775808"} {
		if err := ParseTable(&got, bad); !errors.Is(err, ErrParams) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// The shape of a table is refused where there is none.
func TestTableIsRcuckoos(t *testing.T) {
	for _, k := range kinds {
		p := k.Size(Params{Table: Cuckoo{Entries: 4}})
		if err := p.Check(k); (err == nil) != k.Grows {
			t.Errorf("%s: %v", k.Name, err)
		}
	}
}
