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
		if err == nil {
			err = c.rising(ep, node)
		}
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

// rising returns an error unless versions of a shard rise with terms in a server's logs: a primary
// gives versions above all that are found. So CommitVer of earlier terms covers none of them.
func (c *cluster) rising(ep rdma.Endpoint, node int) error {
	promises, err := rdma.Rings(ep)
	if err != nil {
		return err
	}
	type terms map[uint32][2]uint64 // the lowest version, and the highest
	found := make([]terms, c.o.Shards)
	err = kv.Collect(ep, c.o, promises, node, func(r *kv.Collected) {
		if found[r.Shard] == nil {
			found[r.Shard] = terms{}
		}
		v, ok := found[r.Shard][r.Term]
		if !ok {
			v[0] = r.Version
		}
		found[r.Shard][r.Term] = [2]uint64{min(v[0], r.Version), max(v[1], r.Version)}
	})
	for shard, all := range found {
		for t, v := range all {
			for u, w := range all {
				if t < u && v[1] >= w[0] {
					err = fmt.Errorf("shard %d has version %d in term %d, and %d in term %d", shard, v[1], t, w[0], u)
				}
			}
		}
	}
	return err
}
