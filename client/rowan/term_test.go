package rowan_test

import (
	"testing"

	"github.com/farkv/farkv/client/rowan"
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

// TestTerm: a server does nothing for a client that has another configuration, which reads it again.
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
