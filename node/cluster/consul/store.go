package consul

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/farkv/farkv/node/membership"
)

// MaxValue is the greatest length of a record's value: Consul's limit, unless kv_max_value_size
// changes it.
const MaxValue = 512 << 10

// Store is a pool's registry in Consul's KV. A record's version is its ModifyIndex, the index of
// the Raft entry that wrote it. So versions grow, also when a record is deleted and written again.
type Store struct {
	agent  *Agent
	prefix string
}

var _ membership.Store = (*Store)(nil)

// Load returns a record and its version by a consistent read. Errors wrap
// membership.ErrUnreachable.
func (s *Store) Load(key string) ([]byte, uint64, error) {
	var p *api.KVPair
	err := s.agent.ask(func(o *api.QueryOptions) (meta *api.QueryMeta, err error) {
		p, meta, err = s.agent.client.KV().Get(s.prefix+key, o)
		return meta, err
	})
	if err != nil {
		return nil, 0, s.agent.failed(err, "load %s", s.prefix+key)
	}
	if p == nil {
		return nil, 0, nil
	}
	return p.Value, p.ModifyIndex, nil
}

// Swap replaces a record if it still has the given version. Errors wrap membership.ErrUnreachable,
// unless the value is longer than MaxValue.
func (s *Store) Swap(key string, version uint64, value []byte) (bool, error) {
	if len(value) > MaxValue {
		return false, fmt.Errorf("consul %s: swap %s: %d bytes are more than the %d of a value",
			s.agent.address, s.prefix+key, len(value), MaxValue)
	}
	// Consul does not change the version if nothing changes. So of two writers of the same value
	// both would succeed. The flags, which have no other use, hold the version before: so each
	// write changes something.
	p := &api.KVPair{Key: s.prefix + key, Value: value, ModifyIndex: version, Flags: version}
	var swapped bool
	// It is not repeated after an unknown outcome: see call.
	err := s.agent.call(false, func(ctx context.Context) (err error) {
		swapped, _, err = s.agent.client.KV().CAS(p, (&api.WriteOptions{}).WithContext(ctx))
		return err
	})
	if err != nil {
		return false, s.agent.failed(err, "swap %s", p.Key)
	}
	return swapped, nil
}

// Look returns one record, and all records of which the keys begin with prefix, sorted by key, as
// they were at one moment. Errors wrap membership.ErrUnreachable.
func (s *Store) Look(key, prefix string) (first membership.Record, all []membership.Record, err error) {
	if key != "" {
		first.Key = key
		if first.Value, first.Version, err = s.Load(key); err != nil {
			return membership.Record{}, nil, err
		}
	}
	var pairs api.KVPairs
	err = s.agent.ask(func(o *api.QueryOptions) (meta *api.QueryMeta, err error) {
		pairs, meta, err = s.agent.client.KV().List(s.prefix+prefix, o)
		return meta, err
	})
	if err != nil {
		return membership.Record{}, nil, s.agent.failed(err, "list %s", s.prefix+prefix)
	}
	for _, p := range pairs {
		all = append(all, s.record(p))
	}
	slices.SortFunc(all, func(a, b membership.Record) int { return strings.Compare(a.Key, b.Key) })
	return first, all, nil
}

// record converts a pair of Consul's.
func (s *Store) record(p *api.KVPair) membership.Record {
	return membership.Record{Key: strings.TrimPrefix(p.Key, s.prefix), Value: p.Value, Version: p.ModifyIndex}
}
