package swarm

import (
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/workloads/check"
)

// TestGoroutines lets clients meet on shared memory, where nothing is atomic but words. Their answers are linearizable.
func TestGoroutines(t *testing.T) {
	for _, s := range []Shape{
		{Replicas: 3, Words: 6, Locks: 6, Writers: 6, MaxValue: 400},
		{Replicas: 3, Words: 1, Locks: 6, Writers: 6, MaxValue: 400},
		{Replicas: 5, Words: 2, Locks: 3, Writers: 6, MaxValue: 16},
	} {
		t.Run(fmt.Sprintf("%d words, %d locks", s.Words, s.Locks), func(t *testing.T) {
			const ops = 300
			f, a := pool(t, s, 5, 2, 1<<14)
			recorders := make([]*check.Recorder, s.Writers+1)
			var g errgroup.Group
			first := worker(t, f, a, Options{})
			recorders[s.Writers] = check.NewRecorder(s.Writers, first, first.ep.Now)
			for n := range a.keys {
				must(t, recorders[s.Writers].Insert(fmt.Appendf(nil, "key-%d", n), check.MakeValue(nil, s.Writers, n+1, 16)))
			}
			for w := range s.Writers {
				k := worker(t, f, a, Options{Writer: w})
				recorders[w] = check.NewRecorder(w, k, k.ep.Now)
				if w == 0 { // the number was the first one's
					for n := range k.keys {
						k.keys[n] = NewRegister(k.keys[n].Object, first.keys[n].Floor())
					}
				}
				g.Go(func() error { return mix(recorders[w], w, ops, s.MaxValue, k) })
			}
			must(t, g.Wait())
			must(t, judge(recorders))
		})
	}
}

func mix(s client.Store, w, ops, size int, k *registers) error {
	rng := k.ep.Rand()
	for n := range ops {
		key := fmt.Appendf(nil, "key-%d", rng.IntN(2))
		var err error
		if rng.IntN(2) == 0 {
			err = s.Update(key, check.MakeValue(nil, w, n+1, size))
		} else {
			_, err = s.Get(key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
