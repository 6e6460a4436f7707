package kv

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// TestPromote: a primary serves when all members have given it what they have, and it has digested
// that.
func TestPromote(t *testing.T) {
	b, _ := newBench(t, 2, Rowan, newWorker)
	s, key := b.s, b.key()
	term, sh := s.known.last(), s.shards[s.known.last().Find(Hash(key))]
	r, err := newInbound(s, b.ep)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := newControl(s, b.ep, r, b.f)
	defer c.commits.hear()
	x := newExchanger(s, b.ep)
	sh.follow() // it does not serve yet
	goOn := func() {
		t.Helper()
		for range 10 {
			if err := c.commits.step(len(c.d.used) > 0); err != nil {
				t.Fatal(err)
			}
			if err := c.promote(); err != nil {
				t.Fatal(err)
			}
			if _, err := x.step(); err != nil {
				t.Fatal(err)
			}
			b.ep.Sleep(time.Millisecond)
		}
	}
	goOn()
	if sh.serving() {
		t.Fatal("the server serves before the other one has given what it has")
	}
	other, err := rowan.NewSender(b.other, rowan.SenderOptions{
		Log: s.o.log(0), Source: s.o.exchange(1), Above: term.stamps(), Reserved: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	given := record{order{1, 7}, sh.number, key, []byte("value")}
	data := make([]byte, recordSize(given.key, given.value))
	given.put(data)
	if err := other.Append(kindPut, data, time.Minute); err != nil {
		t.Fatal(err)
	}
	word := b.other.Batch()
	defer word.Release()
	word.WriteWord(s.o.gaveAt(0, 1), term.Term)
	if err := rdma.Do(b.other, word.As("tell"), time.Minute); err != nil {
		t.Fatal(err)
	}
	goOn()
	if !sh.serving() || sh.committed() != given.version {
		t.Errorf("the server serves: %t, up to version %d; it was given %d", sh.serving(), sh.committed(),
			given.version)
	}
}
