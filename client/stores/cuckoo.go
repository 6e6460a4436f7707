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

// CuckooDistances, CuckooFill and CuckooSpans are the curves of RCuckoo's Figure 4, for those who draw them: what its hashing and
// its search do in a table that nobody shares.
var (
	CuckooDistances = rcuckoo.Distances
	CuckooFill      = rcuckoo.MaxFill
	CuckooSpans     = rcuckoo.Spans
)

// TableDoc says what ParseTable understands, and the defaults.
const TableDoc = "entries=8 (of a row), key-bytes=24, inline-bytes=8 (longest value in its row), f=2.3, rows-per-lock=16, lock-bits=63, " +
	"lock-words, rows, shards (one a node)"

// ParseTable shapes t as a user says, name=value with commas between, such as "entries=4,key-bytes=32". What is not named stays as it
// is. The error wraps ErrParams.
func ParseTable(t *Cuckoo, text string) error {
	numbers := map[string]*int{"entries": &t.Entries, "key-bytes": &t.KeyBytes, "inline-bytes": &t.InlineBytes, "rows-per-lock": &t.RowsPerLock,
		"lock-bits": &t.LockBits, "lock-words": &t.LockWords, "rows": &t.Rows, "shards": &t.Shards}
	for _, part := range strings.Split(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		number := numbers[name]
		switch {
		case !ok || number == nil && name != "f":
			return fmt.Errorf("%w: a table with %q: want name=value, with commas between, of %s", ErrParams, part, TableDoc)
		case name == "f":
			f, err := strconv.ParseFloat(value, 64)
			if err != nil || !(f >= 1) {
				return fmt.Errorf("%w: a table with f=%s: want a number from 1 on", ErrParams, value)
			}
			t.F = f
			continue
		}
		n, err := strconv.Atoi(value)
		switch {
		case err == nil && n == 0 && name == "inline-bytes":
			n = -1 // as Shape has it
		case err != nil || n < 1:
			return fmt.Errorf("%w: a table with %s=%s: want a number from 1 on", ErrParams, name, value)
		}
		*number = n
	}
	return nil
}
