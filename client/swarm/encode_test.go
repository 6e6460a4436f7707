package swarm

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// meddler is an endpoint of which a function is called before each post.
type meddler struct {
	rdma.Endpoint
	before func()
}

func (m *meddler) Post(b *rdma.Batch) error {
	if m.before != nil {
		m.before()
	}
	return m.Endpoint.Post(b)
}

// TestEncodedAgain: other writes overtake a write again and again at one replica, which then
// dies. The write asks other replicas in a batch object that it had before. The value is encoded
// there as well.
func TestEncodedAgain(t *testing.T) {
	for overtaken := range 20 {
		f, a := pool(t, Shape{Replicas: 5, Words: 1, Locks: 10, Writers: 10, MaxValue: 100}, 5, 1, 100)
		y := worker(t, f, a, Options{})
		ep, err := f.Open(t.Name())
		must(t, err)
		m := &meddler{Endpoint: ep}
		x, err := a.open(m, Options{Writer: 9})
		must(t, err)
		k, word := &x.keys[0], Word(0)
		posts := 0
		m.before = func() {
			if posts++; posts > overtaken {
				must(t, f.KillNode(k.At[0].Node()))
				return
			}
			next := y.stamp(uint64(posts), 0).word(99)
			b := y.ep.Batch()
			b.CompareSwap(y.wordAt(k, 0, 0), uint64(word), uint64(next))
			must(t, rdma.Do(y.ep, b, time.Second))
			b.Release()
			word = next
		}
		k.InPlace, k.warm, k.last = 0, true, 99
		value := make([]byte, 100)
		must(t, x.Write(k, value))
		m.before = nil
		top, _, err := y.look(&y.keys[0], false)
		must(t, err)
		for r := 1; r < x.Replicas; r++ {
			w := Word(le.Uint64(read(t, y.ep, y.wordAt(k, r, 0), 8)))
			if stampOf(w, 0).time() != top.time() {
				continue
			}
			if v, ok := decodeBuffer(read(t, y.ep, a.Resolve(k.At[r].Node(), k.Hash, pointerOf(w)),
				a.BufferBytes()), k.Hash, top); !ok || len(v) != len(value) {
				t.Errorf("overtaken %d times: replica %d names a buffer that does not have the value", overtaken, r)
			}
		}
		x.Close()
		ep.Close()
	}
}

func read(t *testing.T, ep rdma.Endpoint, at rdma.Addr, n int) []byte {
	t.Helper()
	b := ep.Batch()
	defer b.Release()
	op := b.Read(at, n)
	must(t, rdma.Do(ep, b, time.Second))
	return append([]byte(nil), op.Buf...)
}
