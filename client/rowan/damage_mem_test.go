package rowan_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// TestDamageMem: a record is damaged at one replica while servers run. When that one is to move it, it ends, and is
// left out. Others serve its shards, and nothing is lost.
func TestDamageMem(t *testing.T) {
	o := small(kv.Rowan)
	o.Nodes, o.Shards = 4, 8
	o.Log.Segments, o.Log.Ahead, o.Log.Reserve = 48, 30, 16
	c, f := newChanging(t, o, cm.Options{Period: time.Hour})
	config := c.await("the first configuration", func(*shards.Config) bool { return true })
	s, _, end := c.client()
	defer end()
	value := bytes.Repeat([]byte("victim"), 20) // in one block
	put := func(key string, value []byte) {
		t.Helper()
		if err := s.Insert([]byte(key), value); err != nil {
			t.Fatal(err)
		}
	}
	victim := ""
	for i := 0; victim == ""; i++ {
		key := fmt.Sprint("victim-", i)
		if shard := &config.Shards[config.Find(kv.Hash([]byte(key)))]; shard.Has(1) && shard.Primary != 1 {
			victim = key
		}
	}
	put(victim, value)
	for i := range 10 {
		put(fmt.Sprint("other-", i), value)
	}
	load := func() {
		for i := range 10 {
			_ = s.Update(fmt.Append(nil, "other-", i), value) // full for a moment, or in doubt while a term begins
		}
	}
	for cleaned := c.running[1].Stats().Cleaned; c.running[1].Stats().Cleaned < cleaned+20; { // so the index names it
		load()
	}
	ep := c.endpoint(f, "damage")
	defer ep.Close()
	b := ep.Batch()
	defer b.Release()
	read := b.Read(rdma.At(1, 0), int(o.Size()))
	if err := rdma.Do(ep, b, patience); err != nil {
		t.Fatal(err)
	}
	flip, copies := ep.Batch(), 0
	defer flip.Release()
	record := append([]byte(victim), value...)
	for at := bytes.Index(read.Buf, record); at >= 0; at = bytes.Index(read.Buf, record) {
		read.Buf[at]++
		flip.Write(rdma.At(1, uint64(at+len(victim))), []byte{value[0] ^ 4})
		copies++
	}
	if err := rdma.Do(ep, flip, patience); copies == 0 || err != nil {
		t.Fatalf("%d copies of the record: %v", copies, err)
	}
	for until := time.Now().Add(time.Minute); ; {
		load()
		if c.await("a configuration", func(*shards.Config) bool { return true }).Member(1) == nil {
			break
		}
		if time.Now().After(until) {
			t.Fatal("the server is a member yet, though others' entries were written for a minute")
		}
	}
	load() // the client joins the view
	for i := range 10 {
		put(fmt.Sprint("new-", i), value)
	}
	for _, key := range []string{victim, "other-3", "new-4"} {
		if got, err := s.Get([]byte(key)); err != nil || !bytes.Equal(got, value) {
			t.Errorf("%s: %q, %v", key, got, err)
		}
	}
}
