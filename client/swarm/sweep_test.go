package swarm

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// member joins the view where the pool is swept.
func (r *run) member(ep rdma.Endpoint) *kit.Member {
	if !r.sweeps {
		return nil
	}
	m, err := kit.Join(ep)
	if err != nil {
		panic(err)
	}
	return m
}

// sweep sweeps the buffers again and again while the workers play, and once behind them. The error
// is there when all is over.
func (r *run) sweep(s *sim.Sim, a *arena, workers []*sim.Worker) *error {
	var err error
	if !r.sweeps {
		return &err
	}
	rng := rand.New(rand.NewPCG(r.seed, 12))
	s.Go("master", func(ep rdma.Endpoint) {
		m := &sweeper{arena: a, Sweeper: a.space.Sweeper(ep, a.nodes, time.Second), s: s, ep: ep}
		playing := func(w *sim.Worker) bool { return !w.Finished() && !w.Crashed() }
		for err == nil && slices.ContainsFunc(workers, playing) {
			ep.Sleep(time.Duration(5+rng.IntN(100)) * time.Microsecond)
			err = m.sweep()
		}
		if err == nil {
			err = m.sweep()
		}
	})
	return &err
}

// sweeper is a master that frees buffers, but not objects. It leaves dead nodes alone.
type sweeper struct {
	*arena
	*buffers.Sweeper
	s  *sim.Sim
	ep rdma.Endpoint
}

func living(err error) error {
	if errors.Is(err, rdma.ErrNodeDown) {
		return nil
	}
	return err
}

func (m *sweeper) sweep() error {
	for n := range m.nodes {
		if err := living(m.Count(n)); err != nil {
			return err
		}
	}
	was := m.s.View().Epoch
	now := rdma.State{Epoch: was + 1, Busy: true}
	_, err := m.s.Advance(rdma.State{Epoch: was}, now)
	if err = errors.Join(err, m.s.Fence(now.Epoch)); err != nil {
		return err
	}
	if _, err := m.ep.Join(); err != nil {
		return err
	}
	for n := range m.nodes {
		if err := living(m.free(n)); err != nil {
			return err
		}
	}
	_, err = m.s.Advance(now, rdma.State{Epoch: now.Epoch})
	return err
}

func (m *sweeper) free(node int) error {
	var named [segments][1 << 16]bool
	for key := range m.keys {
		o := m.object(key)
		for r := range m.Replicas {
			if o.At[r].Node() != node {
				continue
			}
			b := m.ep.Batch()
			words := b.Read(o.At[r].Add(uint64(m.wordsAt())), 8*m.Words)
			err := rdma.Do(m.ep, b, time.Second)
			for i := 0; i < m.Words && err == nil; i++ {
				named[m.space.Segment(o.Hash)][bufferOf(Word(le.Uint64(words.Buf[8*i:])))] = true
			}
			b.Release()
			if err != nil {
				return err
			}
		}
	}
	for segment := range segments {
		garbage, err := m.Garbage(node, segment, func(p uint16) bool { return named[segment][p] })
		if err == nil {
			err = m.Free(node, segment, garbage)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
