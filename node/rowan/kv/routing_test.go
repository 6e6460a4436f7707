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

// migrate returns a configuration in which the shard of a server's number migrates to the other
// one, and a key of it.
func (b *bench) migrate(from int) (moved *shards.Config, key []byte) {
	b.t.Helper()
	c, err := shards.New([]int{0, 1}, 4, 1)
	if err == nil {
		c, err = c.Move(shards.Move{Shard: from, From: from, To: 1 - from})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; key == nil || c.Find(Hash(key)) != from; i++ {
		key = fmt.Appendf(nil, "key-%d", i)
	}
	return c.Commit(), key
}

// turnTo has the server and the worker be in a term.
func (b *bench) turnTo(c *shards.Config) {
	b.t.Helper()
	b.adopt(c)
	if err := b.w.turn(); err != nil {
		b.t.Fatal(err)
	}
}

// TestSource: the source of a migration answers with what it has of a key, in the term of the
// target, once it has all of earlier ones.
func TestSource(t *testing.T) {
	b := newBench(t, 2, Rowan)
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
	*bench
	moved  *shards.Config
	key    []byte
	source *rpc.Peer
}

func newTarget(t *testing.T) *target {
	b := newBench(t, 2, Rowan)
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

// TestArriving: what a server knows of a shard that migrates to it, and from it.
func TestArriving(t *testing.T) {
	b := newBench(t, 2, Rowan)
	moved, _ := b.migrate(1)
	target, source := newTerm(moved, 0), newTerm(moved, 1)
	if others := fmt.Sprint(target.others[1], source.others[1]); others != "[1] []" {
		t.Errorf("writes of target and source go to %s", others)
	}
	if to := fmt.Sprint(target.copiesTo(1), source.copiesTo(1)); to != "[] [0]" {
		t.Errorf("target and source copy to %s", to)
	}
	b.turnTo(moved)
	if b.s.may(1) || !b.s.may(0) {
		t.Error("tombstones of a shard are dropped while it migrates to the server, or others are not")
	}
	moved.Shards[1].Copying = []int{2}
	if to := fmt.Sprint(target.copiesTo(1), source.copiesTo(1)); to != "[] [2 0]" {
		t.Errorf("target and source copy to %s", to)
	}
	ended, err := moved.Migrated(1)
	if err != nil {
		t.Fatal(err)
	}
	if to := fmt.Sprint(newTerm(ended, 0).copiesTo(1), newTerm(ended, 1).copiesTo(1)); to != "[2] []" {
		t.Errorf("target and source copy to %s in the end", to)
	}
}
