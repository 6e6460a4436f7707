package sherman

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// deaf is an endpoint on which waits for some batches time out, though they complete.
type deaf struct {
	rdma.Endpoint
	misses func(b *rdma.Batch) bool
}

func (d *deaf) Wait(b *rdma.Batch, n int, within time.Duration) error {
	err := d.Endpoint.Wait(b, n, within)
	if err == nil && d.misses(b) {
		return rdma.ErrTimeout
	}
	return err
}

// TestUncertainMerge: a DELETE whose merge may have taken effect, or may yet, and has locked what
// other clients need, says so: its worker is not used on as if nothing had happened.
func TestUncertainMerge(t *testing.T) { both(t, uncertainMerge) }

func uncertainMerge(t *testing.T, format string) {
	const letters = "abcdefgh"
	f, _ := tinyOn(t, format, letters, 4)
	ep, err := f.Open("deaf")
	must(t, err)
	var s *Store
	missed := false
	s, err = Open(&deaf{ep, func(b *rdma.Batch) bool {
		decides := b.Step() == map[string]rdma.Step{RTX: "decide", DTX: "write and unlock"}[format]
		if s == nil || missed || s.stats.Merges == 0 || !decides {
			return false
		}
		missed = true
		return true
	}}, Options{})
	must(t, err)
	n := 0
	for err == nil && !missed && n < len(letters) {
		err = s.Delete([]byte{letters[n]})
		n++
	}
	if !missed {
		t.Fatal("no merge was to be decided")
	}
	wantError(t, err, client.ErrUncertain)
	for _, k := range letters[:n] {
		wantError(t, getOnly(s, string(k)), client.ErrNotFound)
	}
	must(t, s.Insert([]byte(letters[:1]), nil))
	must(t, s.Close())
	must(t, ep.Close())
	checked(t, f, len(letters)-n+1)
}
