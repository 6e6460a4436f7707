package original

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// grabs counts the batches of a worker by which it looks for free objects.
type grabs struct {
	rdma.Endpoint
	n int
}

func (e *grabs) Post(b *rdma.Batch) error {
	if b.Step() == stepGrab {
		e.n++
	}
	return e.Endpoint.Post(b)
}

// TestFullPool: a worker has filled a pool. What its own DELETE frees, its next INSERT takes. When
// it has looked at all words in vain it does not look again at once. What other clients free later,
// it finds behind that.
func TestFullPool(t *testing.T) {
	f := memPool(t, 2, small(2, 100, 100))
	s, other := storeOn(t, f, Options{}), storeOn(t, f, Options{})
	e := &grabs{Endpoint: s.ep}
	s.ep = e
	key, value := func(i int) []byte { return fmt.Appendf(nil, "key %06d", i) }, bytes.Repeat([]byte("v"), 100)
	n := 0
	for err := error(nil); err == nil; n++ {
		if err = s.Insert(key(n), value); err != nil && !errors.Is(err, client.ErrFull) {
			t.Fatalf("insert %d: %v", n, err)
		}
	}
	n-- // which is the first that is not there
	e.n = 0
	began := s.ep.Now()
	const tries = 20
	for i := range tries {
		must(t, s.Delete(key(i)))
		if err := s.Insert(key(n+i), value); err != nil {
			t.Fatalf("an INSERT behind DELETE %d: %v", i, err)
		}
	}
	wantError(t, s.Insert(key(n+tries), value), client.ErrFull)
	// A node that had nothing is looked at once in vainFor.
	if most := tries + 2*(1+int((s.ep.Now()-began)/vainFor)); e.n > most {
		t.Errorf("it has looked for free blocks by %d batches, want up to %d", e.n, most)
	}
	must(t, other.Delete(key(tries)))
	must(t, other.work(true))
	must(t, other.shed(true))
	s.ep.Sleep(vainFor)
	must(t, s.Insert(key(n+tries), value))
	checked(t, f, n)
}
