package ops

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/montanaflynn/stats"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads"
)

// Cost is what an operation costs one worker that does nothing else, and what its bare batches cost the same worker in
// the same seconds, both in nanoseconds, over random keys with a warm cache: the lower quartile of many short rounds,
// since what other processes do to a round only makes it slower.
type Cost struct {
	Store float64 `json:"ns"`
	Floor float64 `json:"floor_ns"`
	// Low and High are the quartiles of the ratios of single rounds: half of them lie between.
	Low  float64 `json:"ratio_low"`
	High float64 `json:"ratio_high"`
}

// Ratio tells how many times the floor a store takes; 0 when nothing was measured.
func (c Cost) Ratio() float64 {
	if c.Floor == 0 {
		return 0
	}
	return c.Store / c.Floor
}

const (
	costRounds = 32
	costLeast  = 4               // rounds
	costTime   = 2 * time.Second // after which no round begins, once there are costLeast
	costOps    = 4_000           // a round: short beside a scheduler's slice
)

// costs measures Get and Update of the store of a loaded pool against the floor.
func (b *Bench) costs(ctx context.Context, kind *stores.Kind, p *stores.Pool, s *workloads.Spec) (get, update Cost, err error) {
	f, err := b.newFloor(p, s)
	if err != nil {
		return get, update, err
	}
	defer f.close()
	own := *p
	own.Kind = kind
	store, ep, err := own.Worker("bench cost", stores.Options{})
	if err != nil {
		return get, update, err
	}
	defer func() { err = errors.Join(err, store.Close(), ep.Close()) }()
	m := &meter{ctx: ctx, spec: s, store: store, floor: f, rnd: rand.New(rand.NewPCG(b.Seed, 1))}
	if err := m.warm(); err != nil {
		return get, update, err
	}
	var took [4][]float64
	began := time.Now()
	for i := 0; i < costRounds && (i < costLeast || time.Since(began) < costTime); i++ {
		if err := m.round(&took); err != nil {
			return get, update, err
		}
	}
	get, err = costOf(took[0], took[1])
	if err == nil {
		update, err = costOf(took[2], took[3])
	}
	return get, update, err
}

// costOf sums up rounds of a store and, measured in turn with them, of the floor.
func costOf(store, floor []float64) (c Cost, err error) {
	ratios := make([]float64, len(store))
	for i := range store {
		ratios[i] = store[i] / floor[i]
	}
	for _, p := range []struct {
		to      *float64
		of      []float64
		percent float64
	}{{&c.Store, store, 25}, {&c.Floor, floor, 25}, {&c.Low, ratios, 25}, {&c.High, ratios, 75}} {
		if *p.to, err = stats.Percentile(p.of, p.percent); err != nil {
			return c, fmt.Errorf("sum up %d rounds: %w", len(store), err)
		}
	}
	return c, nil
}

// meter is one worker that measures.
type meter struct {
	ctx   context.Context
	spec  *workloads.Spec
	store client.Store
	floor *floor
	rnd   *rand.Rand

	records []uint64 // those of this round, in order
	keys    [][]byte
	value   []byte
}

// warm reads every record once, which fills the cache, and takes the length of the values from one of them.
func (m *meter) warm() error {
	for i := range m.spec.InsertCount {
		v, err := m.store.Get(m.spec.Key(m.spec.InsertStart + i))
		if err != nil {
			return fmt.Errorf("read record %d: %w", m.spec.InsertStart+i, err)
		}
		if m.value == nil {
			m.value = append([]byte{}, v...)
		}
		if i%1024 == 0 && m.ctx.Err() != nil {
			return m.ctx.Err()
		}
	}
	return nil
}

// round draws records and does all four things with them, store and floor in turn, so that what the machine does
// besides befalls both.
func (m *meter) round(took *[4][]float64) error {
	m.records, m.keys = m.records[:0], m.keys[:0]
	for range costOps {
		n := m.rnd.Int64N(m.spec.InsertCount)
		m.records = append(m.records, uint64(n))
		m.keys = append(m.keys, m.spec.Key(m.spec.InsertStart+n))
	}
	for i, f := range []func(i int) error{
		func(i int) error { _, err := m.store.Get(m.keys[i]); return err },
		func(i int) error { return m.floor.get(m.records[i]) },
		func(i int) error { return m.store.Update(m.keys[i], m.value) },
		func(i int) error { return m.floor.update(m.records[i], m.value) },
	} {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		began := time.Now()
		for i := range costOps {
			if err := f(i); err != nil {
				return err
			}
		}
		took[i] = append(took[i], float64(time.Since(began))/costOps)
	}
	return nil
}
