package buffers

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// rows are words that point at buffers: a tag of 48 bits, which rises, and a pointer. A word's
// buffer has its tag. They lie in front of the space.
type rows struct {
	*Space
	words   int
	damaged func(format string, a ...any)
}

func (r *rows) word(i int) rdma.Addr { return rdma.At(0, uint64(8*i)) }

// player is a client that replaces what rows point at, and looks whether it is there.
type player struct {
	*rows
	ep       rdma.Endpoint
	w        *Worker
	m        *kit.Member
	rng      *rand.Rand
	replaced int
	stale    int
	full     int
}

func (r *rows) join(ep rdma.Endpoint, seed uint64) (*player, error) {
	m, err := kit.Join(ep)
	if err != nil {
		return nil, err
	}
	p := &player{rows: r, ep: ep, m: m, w: r.Open(ep, 1, timeout), rng: rand.New(rand.NewPCG(seed, 7))}
	p.w.Follow(m)
	return p, nil
}

func (p *player) read(a rdma.Addr) (uint64, error) {
	b := p.ep.Batch()
	defer b.Release()
	op := b.Read(a, 8)
	err := rdma.Do(p.ep, b, timeout)
	if err != nil {
		return 0, err
	}
	return le.Uint64(op.Buf), nil
}

// look checks that a word's buffer has its tag as long as the word stays as it is.
func (p *player) look(i int) error {
	word, err := p.read(p.word(i))
	if err != nil || stack(word).pointer() == 0 {
		return err
	}
	at := p.Resolve(0, uint64(i), stack(word).pointer())
	found, err := p.read(at.Add(8))
	if err != nil || found == word {
		return err
	}
	if again, err := p.read(p.word(i)); err != nil || again != word {
		return err
	}
	p.damaged("word %d is %#x, and its buffer has %#x", i, word, found)
	return nil
}

// replace makes a word point at a new buffer.
func (p *player) replace(i int) error {
	word, err := p.read(p.word(i))
	if err != nil {
		return err
	}
	epoch := p.m.Epoch
	pointer, at, err := p.w.Allocate(0, uint64(i))
	if err != nil {
		return err
	}
	if p.m.Epoch != epoch {
		return rdma.ErrStale
	}
	next := uint64(stack(word).then(pointer))
	b := p.ep.Batch()
	defer b.Release()
	content := b.Alloc(p.Bytes)
	le.PutUint64(content[8:], next)
	b.Write(at, content)
	cas := b.CompareSwap(p.word(i), word, next)
	if err := rdma.Do(p.ep, b, timeout); err != nil {
		return err
	}
	if !cas.Swapped() {
		p.w.Give(0, uint64(i), pointer)
		return nil
	}
	p.replaced++
	p.w.Give(0, uint64(i), stack(word).pointer())
	return nil
}

// play replaces and looks until it is to stop. Sometimes it stands still for longer than a sweep
// takes.
func (p *player) play(rounds int) error {
	for range rounds {
		i := p.rng.IntN(p.words)
		do := p.replace
		if p.rng.IntN(4) == 0 {
			do = p.look
		}
		err := do(i)
		switch {
		case errors.Is(err, rdma.ErrStale):
			p.stale++
			err = p.m.Join()
		case errors.Is(err, client.ErrFull):
			p.full++
			_, err = p.m.Await(p.m.Epoch+1, 5*time.Microsecond)
		}
		if err != nil {
			return err
		}
		if p.rng.IntN(100) == 0 {
			p.ep.Sleep(time.Duration(p.rng.IntN(200)) * time.Microsecond)
		}
		if p.m.Busy && p.rng.IntN(4) == 0 {
			if err := p.m.Join(); err != nil {
				return err
			}
		}
	}
	return p.w.Close()
}

// sweeping is the master's part.
type sweeping struct {
	*rows
	f     rdma.Fabric
	ep    rdma.Endpoint
	s     *Sweeper
	freed int
}

// sweep frees all garbage in a new epoch.
func (m *sweeping) sweep() error {
	if err := m.s.Count(0); err != nil {
		return err
	}
	v := m.f.View()
	busy := rdma.State{Epoch: v.Epoch + 1, Busy: true}
	if ok, err := m.f.Advance(rdma.State{Epoch: v.Epoch}, busy); !ok || err != nil {
		return fmt.Errorf("begin an epoch: %v, %w", ok, err)
	}
	if err := m.f.Fence(busy.Epoch); err != nil {
		return err
	}
	if _, err := m.ep.Join(); err != nil {
		return err
	}
	named := make([][]bool, m.Segments)
	for i := range named {
		named[i] = make([]bool, MaxBuffers+1)
	}
	for i := range m.words {
		b := m.ep.Batch()
		op := b.Read(m.word(i), 8)
		err := rdma.Do(m.ep, b, timeout)
		if err == nil {
			named[m.Segment(uint64(i))][stack(le.Uint64(op.Buf)).pointer()] = true
		}
		b.Release()
		if err != nil {
			return err
		}
	}
	for segment := range m.Segments {
		garbage, err := m.s.Garbage(0, segment, func(p uint16) bool { return named[segment][p] })
		if err == nil {
			err = m.s.Free(0, segment, garbage)
		}
		if err != nil {
			return err
		}
		m.freed += len(garbage)
	}
	ok, err := m.f.Advance(busy, rdma.State{Epoch: busy.Epoch})
	if !ok {
		err = errors.Join(err, errors.New("another master ended the sweep"))
	}
	return err
}

// account expects that after a sweep each buffer that was handed out is either named or free.
func (m *sweeping) account() error {
	named, free := 0, 0
	for i := range m.words {
		b := m.ep.Batch()
		op := b.Read(m.word(i), 8)
		err := rdma.Do(m.ep, b, timeout)
		if err == nil && stack(le.Uint64(op.Buf)).pointer() != 0 {
			named++
		}
		b.Release()
		if err != nil {
			return err
		}
	}
	handed := 0
	for segment := range m.Segments {
		f, err := m.Walk(m.ep, 0, segment, timeout)
		if err != nil {
			return err
		}
		free += len(f.Pointers)
		handed += f.Handed
	}
	if named+free != handed {
		m.damaged("%d buffers were handed out, %d are free and %d are named", handed, free, named)
	}
	return nil
}

// swept plays with clients that crash, and others that take their places, while a master sweeps.
// What goes wrong is told.
func swept(seed uint64, tell func(format string, a ...any)) (freed, stale, full int) {
	s := &Space{Base: 512, Segments: 1 + int(seed%2), Buffers: 60, Bytes: MinBytes}
	if seed%4 > 1 {
		s.Buffers = 4000 // so that some are always new
	}
	r := &rows{Space: s, words: 12, damaged: func(f string,
		a ...any) {
		tell("seed %d: "+f, append([]any{seed}, a...)...)
	}}
	o := sim.Hostile(seed)
	o.Nodes, o.Memory, o.Handler, o.Limit = 1, s.Base+s.Size(), node.Serve, time.Second
	v := sim.New(o)
	defer v.Close()
	rng := rand.New(rand.NewPCG(seed, 8))
	players := 0
	left := 30
	var enter func()
	enter = func() {
		if left == 0 {
			return
		}
		left--
		players++
		n := left
		w := v.Go(fmt.Sprintf("player %d", n), func(ep rdma.Endpoint) {
			p, err := r.join(ep, seed<<8|uint64(n))
			if err == nil {
				err = p.play(1 + rng.IntN(200))
				stale += p.stale
				full += p.full
			}
			if errors.Is(err, rdma.ErrClosed) {
				return // it has crashed
			}
			if err != nil {
				r.damaged("player %d: %v", n, err)
			}
			players--
			enter()
		})
		w.WhenCrashed(func() { players--; enter() })
		v.CrashAt(w, 20+rng.Uint64N(1000))
	}
	for range 4 {
		enter()
	}
	v.Go("master", func(ep rdma.Endpoint) {
		m := &sweeping{rows: r, f: v, ep: ep, s: s.Sweeper(ep, 1, timeout)}
		var err error
		for err == nil && players > 0 {
			ep.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
			err = m.sweep()
		}
		if err == nil {
			err = m.sweep()
		}
		if err == nil {
			err = m.account()
		}
		if err != nil {
			r.damaged("master: %v", err)
		}
		freed = m.freed
	})
	if err := v.Run(); err != nil {
		r.damaged("%v", err)
	}
	return freed, stale, full
}

// TestSweep: what crashed clients owned is used again, what others own or name is not, and nothing
// is lost.
func TestSweep(t *testing.T) {
	first, count := uint64(1), uint64(80)
	if n, err := strconv.ParseUint(os.Getenv("SEEDS"), 10, 64); err == nil {
		count = n
	}
	var freed, stale, full int
	for seed := first; seed < first+count && !t.Failed(); seed++ {
		a, b, c := swept(seed, t.Errorf)
		freed, stale, full = freed+a, stale+b, full+c
	}
	t.Logf("%d buffers were freed, clients were fenced %d times and found nothing %d times", freed, stale, full)
	if freed < 1000 || stale < 100 || full == 0 {
		t.Error("this shows nothing")
	}
}

// TestAskedAgain: a request that a sweep has cleared is made again in the same epoch, by the next
// allocation that fails.
func TestAskedAgain(t *testing.T) {
	s := &Space{Base: 512, Segments: 1, Buffers: 4, Bytes: MinBytes}
	v := sim.New(sim.Options{Nodes: 1, Memory: s.Base + s.Size(), Handler: node.Serve})
	defer v.Close()
	v.Go("client", func(ep rdma.Endpoint) {
		m, err := kit.Join(ep)
		must(t, err)
		w, sweeper := s.Open(ep, 1, timeout), s.Sweeper(ep, 1, timeout)
		w.Follow(m)
		for range s.Buffers {
			_, _, err := w.Allocate(0, 0)
			must(t, err)
		}
		for range 3 {
			if _, _, err := w.Allocate(0, 0); !errors.Is(err, client.ErrFull) {
				t.Errorf("allocate from an empty space: %v", err)
			}
			if asked, err := sweeper.Asked(0); err != nil || asked != AskSweep {
				t.Errorf("a client that finds no buffer has asked for a sweep: %v, %v", asked, err)
			}
			must(t, sweeper.Begin(0, 1))
		}
	})
	must(t, v.Run())
}
