package rowan_test

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
)

// final reads all keys when nothing else is going on.
func (c *cluster) final(store client.Store, keys int) map[string][]byte {
	state := map[string][]byte{}
	for i := range keys {
		key := fmt.Sprintf("key-%d", i)
		value, err := store.Get([]byte(key))
		switch {
		case err == nil:
			state[key] = append([]byte{}, value...)
		case !errors.Is(err, client.ErrNotFound):
			c.fail("read %s at the end: %w", key, err)
		}
	}
	return state
}

// audit returns an error unless each replica has the state in its node's memory, as a server would
// find it that begins behind a loss of power.
func (c *cluster) audit(ep rdma.Endpoint, state map[string][]byte, keys int) error {
	for node := range c.o.Nodes {
		if c.config.Member(node) == nil {
			continue
		}
		if term, err := kv.LastTerm(ep, c.o, node); err != nil || term != c.config.Term {
			return fmt.Errorf("server %d has noted term %d, %w, want %d", node, term, err, c.config.Term)
		}
		found, err := c.newest(ep, node)
		if err != nil {
			return fmt.Errorf("audit node %d: %w", node, err)
		}
		for i := range keys {
			key := fmt.Sprintf("key-%d", i)
			shard := &c.config.Shards[c.config.Find(kv.Hash([]byte(key)))]
			if !shard.Has(node) {
				continue
			}
			want, there := state[key]
			if got, has := found[key]; has != there || string(got) != string(want) {
				return fmt.Errorf("node %d has %s with %d bytes, %t; want %d bytes, %t; it is one of %+v in term %d",
					node, key, len(got), has, len(want), there, *shard, c.config.Term)
			}
		}
	}
	return nil
}

// newest returns what replicas have of all keys: by key the value of the newest record, unless that
// is a DEL's.
func (c *cluster) newest(ep rdma.Endpoint, nodes ...int) (map[string][]byte, error) {
	newest, found := map[string]*kv.Collected{}, map[string][]byte{}
	promises, err := rdma.Rings(ep)
	if err != nil {
		return nil, err
	}
	for _, node := range nodes {
		err := kv.Collect(ep, c.o, promises, node, func(r *kv.Collected) {
			key := string(r.Key)
			if last := newest[key]; last == nil || r.Newer(last) {
				own := *r
				newest[key], found[key] = &own, bytes.Clone(r.Value)
				if r.Deleted {
					delete(found, key)
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
