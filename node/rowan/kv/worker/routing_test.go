package worker

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
)

// turns bounds how often a worker goes on until something happens.
const turns = 1_000_000

// turnTo has the server and the worker be in a term.
func (b *workerBench) turnTo(c *shards.Config) {
	b.T.Helper()
	b.Adopt(c)
	if err := b.w.turn(); err != nil {
		b.T.Fatal(err)
	}
}

// TestCompared: while replicas are compared nothing is answered or written.
func TestCompared(t *testing.T) {
	b := newWorkerBench(t, 1, kv.Rowan)
	b.End(b.Begin(kv.ProcInsert, "value"), kv.StatusOK)
	c := *b.Server.Known.Last().Config
	c.Term++
	c.Compare = true
	b.turnTo(&c)
	b.End(b.Begin(kv.ProcGet, ""), kv.StatusWait)
	b.End(b.Begin(kv.ProcUpdate, "another"), kv.StatusWait)
	c.Term++
	c.Compare = false
	b.turnTo(&c)
	b.End(b.Begin(kv.ProcUpdate, "another"), kv.StatusOK)
}

// TestSource: the source of a migration answers with what it has of a key, in the term of the
// target, once it has all of earlier ones.
func TestSource(t *testing.T) {
	b := newWorkerBench(t, 2, kv.Rowan)
	moved, key := b.Migrate(0)
	before := *moved
	before.Shards = append([]shards.Shard{{Primary: 0, Source: shards.None}}, moved.Shards[1:]...)
	b.turnTo(&before)
	route := func(term uint64) *rpc.Call {
		t.Helper()
		q := kv.Request{Term: term, Key: key}
		return b.Start(b.Server.Opt.BoxOf(0, kv.ProcRoute, kv.Hash(key), 0), kv.ProcRoute, q.Append(nil))
	}
	answered := func(c *rpc.Call, kind uint8, value string) {
		t.Helper()
		for n := 0; !c.Over() && n < turns; n++ {
			b.w.peer.Next(0)
			if err := b.w.GoOn(); err != nil {
				t.Fatal(err)
			}
			b.Client.Next(0)
		}
		want := string(binary.LittleEndian.AppendUint64(nil, before.Term|uint64(kind)<<32)) + value
		if !c.Over() || c.Err != nil || c.Status != kv.StatusOK || string(c.Body) != want {
			t.Errorf("answer %d, %v, %q, want %q", c.Status, c.Err, c.Body, want)
		}
		c.Release()
	}
	moved.Term = before.Term + 1
	b.End(route(before.Term), kv.StatusBad) // it is no source
	b.End(b.BeginWith(key, kv.ProcInsert, "value"), kv.StatusOK)
	b.turnTo(moved)
	b.End(route(before.Term), kv.StatusTerm)
	b.Server.Known.Settle(before.Term)
	b.End(route(moved.Term), kv.StatusWait)
	b.Server.Known.Settle(moved.Term)
	answered(route(moved.Term), kv.Put, "value")
	before.Term = moved.Term + 1 // as if it went back
	b.turnTo(&before)
	b.End(b.BeginWith(key, kv.ProcDelete, ""), kv.StatusOK)
	moved.Term = before.Term + 1
	b.turnTo(moved)
	answered(route(moved.Term), kv.Del, "")
	key = append(key, "-other"...)
	for i := 0; moved.Find(kv.Hash(key)) != 0; i++ {
		key = fmt.Appendf(nil, "other-%d", i)
	}
	b.End(route(moved.Term), kv.StatusNotFound)
}

// target is a bench with a server to which a shard migrates, and with the shard's source.
type target struct {
	*workerBench
	moved  *shards.Config
	key    []byte
	source *rpc.Peer
}

func newTarget(t *testing.T) *target {
	b := newWorkerBench(t, 2, kv.Rowan)
	moved, key := b.Migrate(1)
	b.turnTo(moved)
	ep, err := b.Fabric.Open("source")
	if err != nil {
		t.Fatal(err)
	}
	box := rdma.BoxOptions{Node: 1, Number: b.Server.Opt.Boxes + 1, Slots: 4, Bytes: b.Server.Opt.LongestMessage()}
	source, err := rpc.Open(ep, rpc.Options{Box: box})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		source.Close()
		ep.Close()
	})
	return &target{b, moved, key, source}
}

// answer has the source answer the worker's next question.
func (b *target) answer(status uint16, term uint64, kind uint8, value string) {
	b.T.Helper()
	for range turns {
		b.w.peer.Next(0)
		if err := b.w.GoOn(); err != nil {
			b.T.Fatal(err)
		}
		r, _ := b.source.Next(0)
		if r == nil {
			continue
		}
		q, err := kv.ParseRequest(r.Body)
		if r.Proc != kv.ProcRoute || err != nil || q.Term != b.moved.Term || string(q.Key) != string(b.key) {
			b.T.Fatalf("procedure %d, %+v, %v", r.Proc, q, err)
		}
		var body []byte
		if status == kv.StatusOK {
			body = append(binary.LittleEndian.AppendUint64(nil, term|uint64(kind)<<32), value...)
		}
		if err := r.Answer(status, body); err != nil {
			b.T.Fatal(err)
		}
		return
	}
	b.T.Fatal("the source is not asked")
}

// ends has the worker go on until a call is answered.
func (b *target) ends(c *rpc.Call, status uint16, value string) {
	b.T.Helper()
	for n := 0; !c.Over() && n < turns; n++ {
		b.source.Next(0)
		b.w.peer.Next(0)
		if err := b.w.GoOn(); err != nil {
			b.T.Fatal(err)
		}
		b.Client.Next(0)
	}
	if !c.Over() || c.Err != nil || c.Status != status || string(c.Body) != value {
		b.T.Fatalf("answer %d, %v, %q, want %d, %q", c.Status, c.Err, c.Body, status, value)
	}
	c.Release()
}

// TestTarget: the target of a migration answers a GET of what it does not have with what the source
// has, unless that is the target's own, in flight. It decides writes by it.
func TestTarget(t *testing.T) {
	b := newTarget(t)
	before, now := b.moved.Term-1, b.moved.Term
	get := b.BeginWith(b.key, kv.ProcGet, "")
	b.answer(kv.StatusWait, 0, 0, "") // it is asked again
	b.answer(kv.StatusOK, now, kv.Put, "in flight")
	b.answer(kv.StatusOK, now, kv.Del, "")
	b.answer(kv.StatusOK, before, kv.Put, "value")
	b.ends(get, kv.StatusOK, "value")

	get = b.BeginWith(b.key, kv.ProcGet, "")
	b.answer(kv.StatusOK, before, kv.Del, "")
	b.ends(get, kv.StatusNotFound, "")

	insert := b.BeginWith(b.key, kv.ProcInsert, "other")
	b.answer(kv.StatusOK, before, kv.Put, "value")
	b.ends(insert, kv.StatusExists, "")

	update := b.BeginWith(b.key, kv.ProcUpdate, "other")
	b.answer(kv.StatusNotFound, 0, 0, "")
	b.ends(update, kv.StatusNotFound, "")

	get = b.BeginWith(b.key, kv.ProcGet, "")
	later := *b.moved
	later.Term++
	b.turnTo(&later)
	b.ends(get, kv.StatusTerm, "")
}
