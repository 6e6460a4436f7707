package table

import (
	"testing"

	"pgregory.net/rapid"
)

// TestShares: each row of the segments before a level is in exactly one share, shareOf and shared
// agree on it, and the share is handed out before the cursor's end.
func TestShares(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := small()
		p.Rows, p.Levels, p.RowsPerLock = rapid.IntRange(1, 200).Draw(r, "rows"), 3,
			rapid.IntRange(1, 40).Draw(r, "rows a lock")
		l, err := New(p, 1)
		if err != nil {
			r.Fatal(err)
		}
		level := rapid.IntRange(1, 3).Draw(r, "level")
		seen := make([]int, p.Rows<<(level-1))
		for share := range l.Ends(level) {
			from, to := l.Shared(share)
			if to-from > GrowShare || int(to) > len(seen) {
				r.Fatalf("share %d of level %d has rows %d to %d", share, level, from, to)
			}
			for id := from; id < to; id++ {
				if seen[id]++; l.shareOf(id) != share {
					r.Fatalf("row %d is in share %d, and says %d", id, share, l.shareOf(id))
				}
			}
		}
		for id, n := range seen {
			if n != 1 {
				r.Fatalf("row %d is in %d shares", id, n)
			}
		}
	})
}
