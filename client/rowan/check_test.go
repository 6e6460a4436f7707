package rowan

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
)

// inTerm is a fabric with another configuration.
type inTerm struct {
	rdma.Fabric
	data []byte
}

func (f inTerm) Config() (rdma.Config, error) { return rdma.Config{Version: 1, Data: f.data}, nil }

// TestSettled: a record that one replica lacks is under way while it may be: if it is of the
// configuration's term, when it is above CommitVer, whatever that is of; if it is of an earlier
// one, before all members have given what they had; if it is of a later one.
func TestSettled(t *testing.T) {
	p, memory, _, err := Size(Shape{Nodes: 2, Records: 100, PairBytes: 100, Replicas: 2, Shards: 1,
		Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f, err := shm.NewMem(shm.Geometry{Nodes: 2, Memory: memory, Clients: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Make(f, p); err != nil {
		t.Fatal(err)
	}
	ep, err := f.Open("server")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	l, _, err := readLayout(ep)
	if err != nil {
		t.Fatal(err)
	}
	config, err := first(2, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	config.Term = 11
	const shard, backup = 0, 1
	o, primary := l.servers.WithDefaults(), config.Shards[shard].Primary
	table, err := rowan.OpenTable(ep, o.LogOf(backup))
	if err != nil {
		t.Fatal(err)
	}
	log, b, key := table.Log(ep, 1), ep.Batch(), 0
	defer b.Release()
	b.WriteWord(o.CommitAt(primary, shard), kv.Seal(14))
	b.WriteWord(o.SinceAt(primary, shard), kv.Seal(1))
	b.WriteWord(o.SinceAt(backup, shard), kv.Seal(1))
	for _, order := range []kv.Order{{Term: 10, Version: 13}, {Term: 11, Version: 14}, {Term: 11, Version: 15},
		{Term: 12, Version: 3}} {
		r := kv.Record{Order: order, Shard: shard, Value: []byte("value")}
		for ; r.Key == nil || config.Find(kv.Hash(r.Key)) != shard; key++ {
			r.Key = fmt.Appendf(nil, "key-%d", key)
		}
		data := make([]byte, kv.RecordSize(r.Key, r.Value))
		r.Put(data)
		if err := log.Reserve(len(data), 0); err != nil {
			t.Fatal(err)
		}
		log.Add(b, kv.Put, r.Term, data)
	}
	if err := rdma.Do(ep, b.As("write"), time.Minute); err != nil {
		t.Fatal(err)
	}
	check := func(what string, damage, under int) {
		t.Helper()
		r, err := Check(inTerm{f, config.Encode()})
		if want := (client.Use{Name: "records under way", Count: uint64(under)}); err != nil ||
			len(r.Damage) != damage || r.Facts[2] != want {
			t.Errorf("%s: %q and %v, %v, want %d and %d", what, r.Damage, r.Facts[2], err, damage, under)
		}
	}
	check("the backup has not given", 1, 3)
	for node := range 2 {
		gave := ep.Batch()
		gave.WriteWord(o.GaveAt(primary, node), config.Term)
		err := rdma.Do(ep, gave.As("tell"), time.Minute)
		gave.Release()
		if err != nil {
			t.Fatal(err)
		}
		if node == 0 {
			check("the primary has", 1, 3)
		}
	}
	check("all have given", 2, 2)
}
