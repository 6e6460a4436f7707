package rowan_test

import (
	"testing"

	"github.com/farkv/farkv/client/rowan"
	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
)

// changing is a configuration that has another term when it is read again.
type changing struct {
	data [][]byte
	read int
}

func (c *changing) Config() (rdma.Config, error) {
	data := c.data[min(c.read, len(c.data)-1)]
	c.read++
	return rdma.Config{Version: uint64(c.read), Data: data}, nil
}

// TestTerm: a server does nothing for a client that has another configuration, which reads it
// again.
func TestTerm(t *testing.T) {
	o := small(kv.Rowan)
	o.FullAfter = patience / 2
	c := newReal(t, o, inMem)
	ready, _, end := c.client()
	if err := ready.Insert([]byte("first"), []byte("value")); err != nil { // servers serve
		t.Fatal(err)
	}
	end()
	other := *c.config
	other.Term += 7
	configs := &changing{data: [][]byte{other.Encode(), other.Encode(), c.config.Encode()}}
	ep := c.endpoint(c.place.clients, "client")
	defer ep.Close()
	s, err := rowan.New(ep, configs, rowan.Options{Servers: c.o, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Insert([]byte("key"), []byte("value")); err != nil || configs.read < 3 {
		t.Errorf("insert: %v, with %d looks at the configuration, want 3 or more", err, configs.read)
	}
}

// TestAnyWorker: each worker of a server answers GETs of a key, and one takes writes of it.
func TestAnyWorker(t *testing.T) {
	c := newReal(t, small(kv.Rowan), inMem)
	s, _, end := c.client()
	key := []byte("key")
	if err := s.Insert(key, []byte("value")); err != nil {
		t.Fatal(err)
	}
	end()
	ep := c.endpoint(c.place.clients, "peer")
	defer ep.Close()
	peer, err := rpc.Open(ep, rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	o, sh := c.o.WithDefaults(), c.config.Shards[c.config.Find(kv.Hash(key))]
	q := kv.Request{Term: c.config.Term, Key: key}
	took := 0
	for worker := range o.Workers {
		box := o.BoxOf(sh.Primary, kv.ProcGet, 0, uint(worker))
		get, err := peer.Call(box, kv.ProcGet, patience, q.Append(nil))
		if err != nil || get.Status != kv.StatusOK || string(get.Body) != "value" {
			t.Fatalf("worker %d answers %+v, %v", worker, get, err)
		}
		get.Release()
		update, err := peer.Call(box, kv.ProcUpdate, patience, append(q.Append(nil), "value"...))
		if err != nil || update.Status != kv.StatusOK && update.Status != kv.StatusBad {
			t.Fatalf("worker %d answers %+v, %v", worker, update, err)
		}
		if update.Status == kv.StatusOK {
			took++
		}
		update.Release()
	}
	if took != 1 || o.Workers < 2 {
		t.Errorf("%d of %d workers take a write", took, o.Workers)
	}
}
