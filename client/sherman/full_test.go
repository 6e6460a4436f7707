package sherman

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
)

// TestFull fills a pool by several clients until INSERTs fail. Everything can be read then; DELETEs
// go on, and nearly all UPDATEs, by these clients and by one that comes only then; and when a part
// was deleted, INSERTs go on.
func TestFull(t *testing.T) {
	both(t, func(t *testing.T, format string) { full(t, format, 8); full(t, format, 100) })
}

func full(t *testing.T, format string, values int) {
	t.Run(fmt.Sprintf("values of %d bytes", values), func(t *testing.T) {
		f := memPool(t, sized(Shape{Format: format, Nodes: 2, Records: 1500, NodeBytes: 512, KeyBytes: 16,
			ValueBytes: values, Clients: 8, Workers: 3}))
		var all []*Store
		for range 3 {
			all = append(all, storeOn(t, f, Options{}))
		}
		key := func(i int) []byte { return fmt.Appendf(nil, "key%07d", i*7919%1e7) }
		n, full := 0, 0
		for full < 3 { // each says so
			err := all[n%3].Insert(key(n), make([]byte, values))
			switch {
			case errors.Is(err, client.ErrFull):
				all = append(all[1:], all[0])
				full++
			case err != nil:
				t.Fatal(err)
			default:
				n, full = n+1, 0
			}
		}
		t.Logf("%d pairs of %d", n, 1500)
		all = append(all, storeOn(t, f, Options{}))
		for i := range n {
			if _, err := all[i%4].Get(key(i)); err != nil {
				t.Fatalf("pair %d: %v", i, err)
			}
		}
		for _, s := range all {
			wantError(t, s.Insert(key(0), make([]byte, values)), client.ErrExists)
		}
		checkedLive(t, f, n)
		failed := 0
		for i := range n / 2 {
			if err := all[i%4].Update(key(i), make([]byte, values)); errors.Is(err, client.ErrFull) {
				failed++
			} else if err != nil {
				t.Fatalf("pair %d: %v", i, err)
			}
		}
		gone := 0
		for i := range n / 2 {
			if err := all[i%4].Delete(key(i)); err != nil {
				t.Fatalf("pair %d, behind %d: %v", i, gone, err)
			}
			gone++
		}
		checkedLive(t, f, n-gone)
		time.Sleep(5 * time.Millisecond)
		again := 0
		for i := range n / 3 {
			if err := all[i%4].Insert(key(i), make([]byte, values)); err == nil {
				again++
			} else if !errors.Is(err, client.ErrFull) {
				t.Fatal(err)
			}
		}
		t.Logf("%d of %d UPDATEs failed, and %d of %d pairs come back", failed, n/2, again, n/3)
		if failed > n/200 || again < n/3 {
			t.Error("an UPDATE needs a buffer, for a moment, which the others may have; but that is too many, " +
				"or too few")
		}
	})
}
