package kv

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards"
)

// turns bounds how often a worker goes on until something happens.
const turns = 1_000_000

// turnTo has the server and the worker be in a term.
func (b *workerBench) turnTo(c *shards.Config) {
	b.t.Helper()
	b.adopt(c)
	if err := b.w.turn(); err != nil {
		b.t.Fatal(err)
	}
}

// TestSource: the source of a migration answers with what it has of a key, in the term of the
// target, once it has all of earlier ones.
func TestSource(t *testing.T) {
	b := newWorkerBench(t, 2, Rowan)
	moved, key := b.migrate(0)
	before := *moved
	before.Shards = append([]shards.Shard{{Primary: 0, Source: shards.None}}, moved.Shards[1:]...)
	b.turnTo(&before)
	route := func(term uint64) *rpc.Call {
		t.Helper()
		q := Request{Term: term, Key: key}
		return b.start(b.s.o.BoxOf(0, ProcRoute, Hash(key), 0), ProcRoute, q.Append(nil))
	}
	answered := func(c *rpc.Call, kind uint8, value string) {
		t.Helper()
		for n := 0; !c.Over() && n < turns; n++ {
			b.w.peer.Next(0)
			if err := b.w.goOn(); err != nil {
				t.Fatal(err)
			}
			b.client.Next(0)
		}
		want := string(binary.LittleEndian.AppendUint64(nil, before.Term|uint64(kind)<<32)) + value
		if !c.Over() || c.Err != nil || c.Status != StatusOK || string(c.Body) != want {
			t.Errorf("answer %d, %v, %q, want %q", c.Status, c.Err, c.Body, want)
		}
		c.Release()
	}
	moved.Term = before.Term + 1
	b.end(route(before.Term), StatusBad) // it is no source
	b.end(b.beginWith(key, ProcInsert, "value"), StatusOK)
	b.turnTo(moved)
	b.end(route(before.Term), StatusTerm)
	b.s.known.settle(before.Term)
	b.end(route(moved.Term), StatusWait)
	b.s.known.settle(moved.Term)
	answered(route(moved.Term), kindPut, "value")
	before.Term = moved.Term + 1 // as if it went back
	b.turnTo(&before)
	b.end(b.beginWith(key, ProcDelete, ""), StatusOK)
	moved.Term = before.Term + 1
	b.turnTo(moved)
	answered(route(moved.Term), kindDel, "")
	key = append(key, "-other"...)
	for i := 0; moved.Find(Hash(key)) != 0; i++ {
		key = fmt.Appendf(nil, "other-%d", i)
	}
	b.end(route(moved.Term), StatusNotFound)
}

// target is a bench with a server to which a shard migrates, and with the shard's source.
type target struct {
	*workerBench
	moved  *shards.Config
	key    []byte
	source *rpc.Peer
}

func newTarget(t *testing.T) *target {
	b := newWorkerBench(t, 2, Rowan)
	moved, key := b.migrate(1)
	b.turnTo(moved)
	ep, err := b.f.Open("source")
	if err != nil {
		t.Fatal(err)
	}
	box := rdma.BoxOptions{Node: 1, Number: b.s.o.Boxes + 1, Slots: 4, Bytes: b.s.o.message()}
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
	b.t.Helper()
	for range turns {
		b.w.peer.Next(0)
		if err := b.w.goOn(); err != nil {
			b.t.Fatal(err)
		}
		r, _ := b.source.Next(0)
		if r == nil {
			continue
		}
		q, err := parseRequest(r.Body)
		if r.Proc != ProcRoute || err != nil || q.Term != b.moved.Term || string(q.Key) != string(b.key) {
			b.t.Fatalf("procedure %d, %+v, %v", r.Proc, q, err)
		}
		var body []byte
		if status == StatusOK {
			body = append(binary.LittleEndian.AppendUint64(nil, term|uint64(kind)<<32), value...)
		}
		if err := r.Answer(status, body); err != nil {
			b.t.Fatal(err)
		}
		return
	}
	b.t.Fatal("the source is not asked")
}

// ends has the worker go on until a call is answered.
func (b *target) ends(c *rpc.Call, status uint16, value string) {
	b.t.Helper()
	for n := 0; !c.Over() && n < turns; n++ {
		b.source.Next(0)
		b.w.peer.Next(0)
		if err := b.w.goOn(); err != nil {
			b.t.Fatal(err)
		}
		b.client.Next(0)
	}
	if !c.Over() || c.Err != nil || c.Status != status || string(c.Body) != value {
		b.t.Fatalf("answer %d, %v, %q, want %d, %q", c.Status, c.Err, c.Body, status, value)
	}
	c.Release()
}

// TestTarget: the target of a migration answers a GET of what it does not have with what the source
// has, unless that is the target's own, in flight. It decides writes by it.
func TestTarget(t *testing.T) {
	b := newTarget(t)
	before, now := b.moved.Term-1, b.moved.Term
	get := b.beginWith(b.key, ProcGet, "")
	b.answer(StatusWait, 0, 0, "") // it is asked again
	b.answer(StatusOK, now, kindPut, "in flight")
	b.answer(StatusOK, now, kindDel, "")
	b.answer(StatusOK, before, kindPut, "value")
	b.ends(get, StatusOK, "value")

	get = b.beginWith(b.key, ProcGet, "")
	b.answer(StatusOK, before, kindDel, "")
	b.ends(get, StatusNotFound, "")

	insert := b.beginWith(b.key, ProcInsert, "other")
	b.answer(StatusOK, before, kindPut, "value")
	b.ends(insert, StatusExists, "")

	update := b.beginWith(b.key, ProcUpdate, "other")
	b.answer(StatusNotFound, 0, 0, "")
	b.ends(update, StatusNotFound, "")

	get = b.beginWith(b.key, ProcGet, "")
	later := *b.moved
	later.Term++
	b.turnTo(&later)
	b.ends(get, StatusTerm, "")
}
