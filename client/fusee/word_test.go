package fusee

import (
	"testing"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
)

// FuzzWord: whatever a slot holds, following it leads into a block or to an error.
func FuzzWord(f *testing.F) {
	l, err := layout.New(small(3, 2, 2), 3, 1<<40)
	if err != nil {
		f.Fatal(err)
	}
	x := pool(f, 3, small(3, 2, 2))
	c := worker(f, x, Options{}, nil)
	f.Add(uint64(0))
	f.Add(uint64(race.Pack(1, 3, l.Space.Object(node.Block{}, 0, 3), 1)))
	f.Add(^uint64(0))
	f.Fuzz(func(t *testing.T, w uint64) {
		b := c.s.Batch()
		defer b.Release()
		if _, err := c.pairs.read(b, race.Word(w)); err != nil {
			return
		}
		if err := c.s.Do("test", b); err != nil {
			t.Fatalf("%v: %v", race.Word(w), err)
		}
	})
}
