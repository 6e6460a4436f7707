package measure

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

// Cost is what an operation costs one worker that does nothing else, and what the very batches that
// the store posts for it cost alone in the same seconds, both in nanoseconds, over random keys with
// a warm cache: the lower quartile of many short rounds, since what other processes do to a round
// only makes it slower.
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
	costOps    = 4_000           // a round, or as many as a shorter run has: short beside a scheduler's slice
)

// costs measures Get and Update of the store of a loaded pool against its own batches. It also
// returns the bytes of the keys and values of all records, by reading them: those that were loaded,
// and so many that a run has inserted behind them. Where a store's servers take part there is no
// floor, and nothing is measured.
func (b *Bench) costs(ctx context.Context, kind *stores.Kind, p *stores.Pool, s *workloads.Spec, inserted int64) (
	get, update Cost, user uint64, err error,
) {
	ep, err := p.Fabric.Open("bench cost")
	if err != nil {
		return get, update, 0, err
	}
	m := &meter{ctx: ctx, spec: s, ops: int(min(costOps, b.Ops)), ep: &recorder{Endpoint: ep},
		rnd: rand.New(rand.NewPCG(b.Seed, 1))}
	if m.store, err = kind.Open(m.ep, stores.Options{Fabric: p.Fabric}); err != nil {
		return get, update, 0, errors.Join(err, ep.Close())
	}
	defer func() { err = errors.Join(err, m.store.Close(), ep.Close()) }()
	if user, err = m.warm(inserted); err != nil || kind.Serve != nil {
		return get, update, user, err
	}
	if m.floor, err = b.newFloor(p); err != nil {
		return get, update, 0, err
	}
	defer func() { err = errors.Join(err, m.floor.close()) }()
	var took [4][]float64
	began := time.Now()
	for i := 0; i < costRounds && (i < costLeast || time.Since(began) < costTime); i++ {
		if err := m.round(&took); err != nil {
			return get, update, 0, err
		}
	}
	get, err = costOf(took[0], took[1])
	if err == nil {
		update, err = costOf(took[2], took[3])
	}
	return get, update, user, err
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
	ops   int // of a round
	store client.Store
	ep    *recorder // the store's
	floor *floor
	rnd   *rand.Rand

	keys          [][]byte // of this round, in order
	value         []byte
	gets, updates batches // of a store's round
}

// warm reads every record once, which fills the cache, and takes a value to write from one of them.
// It returns the bytes of all keys and values.
func (m *meter) warm(inserted int64) (user uint64, err error) {
	end := m.spec.InsertStart + m.spec.InsertCount
	for _, r := range [][2]int64{{m.spec.RecordCount, m.spec.RecordCount + inserted}, {m.spec.InsertStart, end}} {
		for n := r[0]; n < r[1]; n++ {
			key := m.spec.Key(n)
			v, err := m.store.Get(key)
			if err != nil {
				return 0, fmt.Errorf("read record %d: %w", n, err)
			}
			if m.value == nil {
				m.value = append([]byte{}, v...)
			}
			user += uint64(len(key) + len(v))
			if n%1024 == 0 && m.ctx.Err() != nil {
				return 0, m.ctx.Err()
			}
		}
	}
	return user, nil
}

// draw chooses the records of a round.
func (m *meter) draw() {
	m.keys = m.keys[:0]
	for range m.ops {
		m.keys = append(m.keys, m.spec.Key(m.spec.InsertStart+m.rnd.Int64N(m.spec.InsertCount)))
	}
}

func (m *meter) get() error {
	for _, key := range m.keys {
		if _, err := m.store.Get(key); err != nil {
			return err
		}
	}
	return nil
}

func (m *meter) update() error {
	for _, key := range m.keys {
		if err := m.store.Update(key, m.value); err != nil {
			return err
		}
	}
	return nil
}

// record notes the batches of operations with some records.
func (m *meter) record(into *batches, do func() error) error {
	into.reset()
	m.draw()
	m.ep.into = into
	err := do()
	m.ep.into = nil
	return err
}

// round notes what the store posts, and then does all four things, store and floor in turn, so that
// what the machine does besides befalls both. The store works on other records than those of which
// the batches are.
func (m *meter) round(took *[4][]float64) error {
	if err := errors.Join(m.record(&m.gets, m.get), m.record(&m.updates, m.update)); err != nil {
		return err
	}
	m.draw()
	for i, f := range []func() error{
		m.get,
		func() error { return m.floor.replay(&m.gets) },
		m.update,
		func() error { return m.floor.replay(&m.updates) },
	} {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		began := time.Now()
		if err := f(); err != nil {
			return err
		}
		took[i] = append(took[i], float64(time.Since(began))/float64(m.ops))
	}
	return nil
}
