package rcuckoo

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check"
)

// TestMoved reads keys again and again while an INSERT moves them to their other rows: no reader
// misses one.
func TestMoved(t *testing.T) {
	for _, seed := range crashSeeds(t, 30) {
		d := newTableRun(t, seed, 0.95, 1+int(seed%5))
		moved := false
		d.enter("mover", func(w int, r *check.Recorder, ep rdma.Endpoint) {
			ep.Sleep(10 * time.Microsecond)
			if err := r.Insert(d.keys[0], check.MakeValue(nil, w, 1, 16)); err != nil {
				d.errs = append(d.errs, err)
			}
			moved = true
		})
		for i := range 4 {
			d.enter(fmt.Sprint("reader ", i), func(w int, r *check.Recorder, ep rdma.Endpoint) {
				for n := i; !moved; n++ {
					key := d.keys[1+n%(len(d.keys)-1)]
					if _, err := r.Get(key); err != nil {
						d.errs = append(d.errs, fmt.Errorf("get %q: %w", key, err))
					}
				}
			})
		}
		if err := d.end(); err != nil {
			t.Fatalf("seed %d, keys %q: %v", seed, d.keys, err)
		}
	}
}
