package stores

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/farkv/farkv/client/rcuckoo"
)

// Cuckoo shapes the pools of RCuckoo, as far as users choose it. Nodes, Records, Clients and Timeout are the pool's own.
type Cuckoo = rcuckoo.Shape

// MaxLevels is how many times tables may double at most.
const MaxLevels = rcuckoo.MaxLevels

// CuckooTable is a table of RCuckoo that nobody shares, for those who measure its hashing and its search alone.
type CuckooTable = rcuckoo.Table

// NewCuckooTable makes one.
var NewCuckooTable = rcuckoo.NewTable

// TableDoc says what ParseTable understands, with the defaults and bounds.
var TableDoc = fmt.Sprintf("entries=8 (of a row; up to %d), key-bytes=24 (longest key; up to %d), inline-bytes=8 (longest value in its row; 0 to %d), "+
	"f=2.3, rows-per-lock=16 (up to a shard's rows), lock-bits=63, lock-words, rows, shards (one a node)",
	rcuckoo.Most().Entries, rcuckoo.Most().KeyBytes, rcuckoo.Most().InlineBytes)

// ParseTable shapes t as a user says, name=value with commas between, such as "entries=4,key-bytes=32". What is not named stays as it
// is. The error wraps ErrParams, and says what the value may be.
func ParseTable(t *Cuckoo, text string) error {
	most := rcuckoo.Most()
	numbers := map[string]struct {
		value *int
		most  int
	}{
		"entries": {&t.Entries, most.Entries}, "key-bytes": {&t.KeyBytes, most.KeyBytes}, "inline-bytes": {&t.InlineBytes, most.InlineBytes},
		"rows-per-lock": {&t.RowsPerLock, most.RowsPerLock}, "lock-bits": {&t.LockBits, most.LockBits},
		"lock-words": {&t.LockWords, most.LockWords}, "rows": {&t.Rows, most.Rows}, "shards": {&t.Shards, most.Shards},
	}
	for _, part := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		number, known := numbers[name]
		switch {
		case !ok || !known && name != "f":
			return fmt.Errorf("%w: a table with %q: want name=value, with commas between, of %s", ErrParams, part, TableDoc)
		case name == "f":
			f, err := strconv.ParseFloat(value, 64)
			if err != nil || !(f >= 1 && f <= most.F) { // NaN is neither
				return fmt.Errorf("%w: a table with f=%s: want 1 to %.0f", ErrParams, value, most.F)
			}
			t.F = f
			continue
		}
		least := 1
		if name == "inline-bytes" {
			least = 0
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < least || n > number.most {
			return fmt.Errorf("%w: a table with %s=%s: want %d to %d", ErrParams, name, value, least, number.most)
		}
		if n == 0 {
			n = -1 // as Shape has it
		}
		*number.value = n
	}
	return nil
}
