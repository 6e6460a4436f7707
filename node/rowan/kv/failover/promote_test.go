package failover

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/digest"
	"github.com/farkv/farkv/node/rowan/kv/exchange"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/worker"
)

// TestPromote: a primary serves when all members have given it what they have, and it has digested
// that.
func TestPromote(t *testing.T) {
	b, _ := kvtest.New(t, 2, kv.Rowan, worker.New)
	s, key := b.Server, b.Key()
	term, sh := s.Known.Last(), s.Shards[s.Known.Last().Find(kv.Hash(key))]
	r, err := digest.NewInbound(s, b.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := newControl(s, b.Endpoint, r, b.Fabric)
	defer c.commits.Hear()
	x := exchange.New(s, b.Endpoint)
	sh.Follow() // it does not serve yet
	goOn := func() {
		t.Helper()
		for range 10 {
			if err := c.commits.Step(c.d.Waits()); err != nil {
				t.Fatal(err)
			}
			if err := c.promote(); err != nil {
				t.Fatal(err)
			}
			if _, err := x.Step(); err != nil {
				t.Fatal(err)
			}
			b.Endpoint.Sleep(time.Millisecond)
		}
	}
	goOn()
	if sh.Serving() {
		t.Fatal("the server serves before the other one has given what it has")
	}
	other, err := rowan.NewSender(b.Other, rowan.SenderOptions{
		Log: s.Opt.LogOf(0), Source: s.Opt.ExchangeSource(1), Above: term.Stamps(), Reserved: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	given := kv.Record{Order: kv.Order{Term: 1, Version: 7}, Shard: sh.Number, Key: key, Value: []byte("value")}
	data := make([]byte, kv.RecordSize(given.Key, given.Value))
	given.Put(data)
	if err := other.Append(kv.Put, data, time.Minute); err != nil {
		t.Fatal(err)
	}
	word := b.Other.Batch()
	defer word.Release()
	word.WriteWord(s.Opt.GaveAt(0, 1), term.Term)
	if err := rdma.Do(b.Other, word.As("tell"), time.Minute); err != nil {
		t.Fatal(err)
	}
	goOn()
	if !sh.Serving() || sh.CommitVer() != given.Version {
		t.Errorf("the server serves: %t, up to version %d; it was given %d", sh.Serving(), sh.CommitVer(),
			given.Version)
	}
}
