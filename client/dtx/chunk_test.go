package dtx

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/client"
)

// TestLargerPlace: where no place of a size is left, and chunks keep their sizes, a larger one does.
func TestLargerPlace(t *testing.T) {
	f, l := pool(t, Shape{Memory: 1 << 20})
	w := worker(t, f, l, Options{})
	var all []Ref
	for {
		r, err := create(w, string(make([]byte, 1000)))
		if errors.Is(err, client.ErrFull) {
			break
		}
		must(t, err)
		all = append(all, r)
	}
	must(t, w.Run(func(tx *Tx) error { return tx.Free(all[0]) }))
	r, err := create(w, "small")
	must(t, err)
	wantData(t, w, "[small]", r)
	must(t, set(w, "other", r))
	wantData(t, w, "[other]", r)
	must(t, w.Close())
}
