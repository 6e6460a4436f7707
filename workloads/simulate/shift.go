package simulate

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/workloads"
)

// Shift makes one shard hot (Rowan 6.6): from a time on, a share of the requests for shards of one
// server of Rowan-KV, or a baseline of it, are for records of one shard of another server instead,
// chosen evenly. Shards are of their primaries at that time.
type Shift struct {
	At       time.Duration // since measuring began
	Share    float64       // 0: nothing shifts
	From, To int           // servers, by their nodes
}

func (s *Shift) happens() bool { return s.Share != 0 }

// check returns an error when s makes no sense.
func (s *Shift) check(c *Config) error {
	_, err := kv.ParseKind(c.Store)
	switch {
	case !s.happens():
		return nil
	case err != nil:
		return workloads.Usagef("requests shift between servers of %s: want %s, whose shards move", c.Store, kv.Rowan)
	case s.Share < 0 || s.Share > 1 || s.At < 0 || s.From < 0 || s.To < 0 || s.From == s.To:
		return workloads.Usagef("%g of the requests shift from server %d to %d at %v: want a share, two servers "+
			"and a time", s.Share, s.From, s.To, s.At)
	}
	return nil
}

// shifting is a shift that has happened.
type shifting struct {
	from []bool  // by record, less the first one's number: its requests shift
	to   []int64 // records
}

// shifted returns the number of the record that is asked for instead of another.
func (r *run) shifted(n int64, e *env) int64 {
	if e.Now() < r.Shift.At || r.failed != nil {
		return n
	}
	if r.shift == nil {
		s, err := r.newShifting()
		if err != nil {
			r.failed = err
			r.stop.Store(true)
			return n
		}
		r.shift = s
	}
	s, i := r.shift, n-r.Spec.InsertStart
	if i >= int64(len(s.from)) || !s.from[i] || e.Rand().Float64() >= r.Shift.Share {
		return n
	}
	return s.to[e.Rand().IntN(len(s.to))]
}

func (r *run) newShifting() (*shifting, error) {
	at, err := r.sim.Config()
	if err != nil {
		return nil, fmt.Errorf("shift requests: %w", err)
	}
	c, err := shards.Decode(at.Data)
	if err != nil {
		return nil, fmt.Errorf("shift requests: %w", err)
	}
	hot := slices.IndexFunc(c.Shards, func(s shards.Shard) bool { return s.Primary == r.Shift.To })
	s := &shifting{from: make([]bool, r.Spec.InsertCount)}
	for i := range s.from {
		n := r.Spec.InsertStart + int64(i)
		shard := c.Find(kv.Hash(r.Spec.Key(n)))
		s.from[i] = c.Shards[shard].Primary == r.Shift.From
		if shard == hot {
			s.to = append(s.to, n)
		}
	}
	if len(s.to) == 0 {
		return nil, fmt.Errorf("shift requests: %w",
			workloads.Usagef("no record is in a shard of server %d", r.Shift.To))
	}
	return s, nil
}
