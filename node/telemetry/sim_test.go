package telemetry

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
)

var childMains = func([]string) error { return errors.ErrUnsupported } // of processes that tests start

func TestMain(m *testing.M) {
	child.Main(childMains)
	goleak.VerifyTestMain(m)
}

// forSeeds runs a test with the chosen seeds. It stops at a failure.
func forSeeds(t *testing.T, n uint64, test func(t *testing.T, seed uint64)) {
	t.Helper()
	first, count := seeds.Chosen(t, n)
	for seed := first; seed < first+count; seed++ {
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { test(t, seed) }) {
			return
		}
	}
}

// pool is a simulated pool that is nothing but a region, behind some memory of a store.
type pool struct {
	*sim.Sim
	t *testing.T
	r *Region
}

const (
	storeBytes  = 4096
	wallAtStart = 1_700_000_000 // seconds
)

func newPool(t *testing.T, o sim.Options, nodes, records int) *pool {
	o.Nodes, o.Memory, o.AllowMixing = nodes, storeBytes+Bytes(records), false
	p := &pool{sim.New(o), t, At(storeBytes, nodes, records)}
	t.Cleanup(func() { p.Close() })
	ep := p.open()
	if err := p.r.Format(ep); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pool) open() rdma.Endpoint {
	ep, err := p.Open("test")
	if err != nil {
		p.t.Fatal(err)
	}
	return ep
}

func (p *pool) run() {
	p.t.Helper()
	if err := p.Run(); err != nil {
		p.t.Fatal(err)
	}
}

func wall(ep rdma.Endpoint) time.Time { return time.Unix(wallAtStart, 0).Add(ep.Now()).UTC() }

// told is what a process of some life tells the k-th time: each part of it can be computed from k,
// so that a mix shows.
func told(life, k uint64, at time.Time) *Process {
	p := &Process{Host: fmt.Sprint("host ", life), PID: int(k), Life: life, Name: fmt.Sprint("told ", k), At: at,
		Workers: int(k),
		Began:   at, Calls: k}
	for i := range p.Ops {
		h := new(Histogram)
		for d := range k%50 + 1 {
			h.Record(time.Duration((k + d) * 1000))
		}
		p.Ops[i] = Ops{k, k + 1, k + 2, k + 3, h}
	}
	for i := range int(k % 5) {
		p.Nodes = append(p.Nodes, NodeCounts{Node: i, Reads: k, Writes: k, BytesRead: k * 8})
	}
	return p
}

// isTold reports whether p is what its process told some time.
func isTold(p *Process) bool {
	return reflect.DeepEqual(p, told(p.Life, p.Calls, p.At))
}

// teller is a worker that tells something again and again.
type teller struct {
	life  uint64
	times uint64
	pause time.Duration
	acked uint64 // the last one that Publish returned nil for
	w     *Writer
	done  bool
}

func (x *teller) run(p *pool) func(ep rdma.Endpoint) {
	return func(ep rdma.Endpoint) {
		x.w = NewWriter(p.r, x.life)
		for k := range x.times {
			if err := x.w.Publish(ep, told(x.life, k+1, wall(ep).Truncate(time.Microsecond))); err == nil {
				x.acked = k + 1
			} else if errors.Is(err, rdma.ErrClosed) {
				return
			} else if !errors.Is(err, ErrNowhere) && !errors.Is(err, rdma.ErrStale) {
				p.t.Errorf("publish: %v", err)
			}
			ep.Sleep(x.pause)
		}
		x.done = true
	}
}

// watch looks again and again: what it finds was told as a whole, never goes back, and is not older
// than what was acknowledged before the look began.
func watch(p *pool, looks int, tellers ...*teller) func(ep rdma.Endpoint) {
	return func(ep rdma.Endpoint) {
		d, last := NewReader(p.r), map[uint64]uint64{}
		for range looks {
			acked := map[uint64]uint64{}
			for _, x := range tellers {
				if x.w != nil && x.w.Recorded() {
					acked[x.life] = x.acked
				}
			}
			all, _, err := d.Processes(ep, wall(ep))
			if err != nil {
				p.t.Errorf("look: %v", err)
				return
			}
			found := map[uint64]bool{}
			for i := range all {
				is := &all[i]
				if found[is.Life] = true; !isTold(is) {
					p.t.Errorf("this was never told: %+v", is)
				}
				if is.Calls < last[is.Life] || is.Calls < acked[is.Life] {
					p.t.Errorf("process %d tells %d, though it told %d before, and %d was seen", is.Life, is.Calls,
						acked[is.Life], last[is.Life])
				}
				last[is.Life] = is.Calls
			}
			for _, x := range tellers {
				if acked[x.life] > 0 && !found[x.life] {
					p.t.Errorf("what process %d told %d times is not there", x.life, acked[x.life])
				}
			}
			ep.Sleep(time.Duration(ep.Rand().Int64N(int64(20 * time.Microsecond))))
		}
	}
}

// TestTorn ends a process in the midst of its publications, at any verb, so that any of the words
// of what it was writing land: readers, beside it and behind, see what it told before, or what it
// told then, and nothing else.
func TestTorn(t *testing.T) {
	forSeeds(t, 150, func(t *testing.T, seed uint64) {
		p := newPool(t, sim.Hostile(seed), 1+int(seed%3), 2)
		x := &teller{life: 7 + seed, times: 40, pause: 3 * time.Microsecond}
		w := p.Go("teller", x.run(p))
		p.CrashAt(w, 4+seed%60)
		p.Go("reader", watch(p, 40, x))
		p.run()
		if t.Failed() {
			return
		}
		p.Go("reader behind", watch(p, 1, x))
		p.run()
	})
}

// TestAtOnce lets processes publish that have to share a few records while others end. No two have
// one record at a time, and those without are counted. After StaleAfter another process takes the
// record of one that has ended.
func TestAtOnce(t *testing.T) {
	forSeeds(t, 60, func(t *testing.T, seed uint64) {
		const records, processes = 2, 4
		nodes := 1 + int(seed%2)
		p := newPool(t, sim.Hostile(seed), nodes, records)
		var all []*teller
		for i := range uint64(processes) {
			x := &teller{life: 1 + i*(seed+1), times: 30, pause: time.Second}
			if i >= records {
				x.life = 1<<32 + i
			}
			w := p.Go(fmt.Sprint("teller ", i), x.run(p))
			if i < records/2 {
				p.CrashAt(w, 30+seed%5)
			}
			all = append(all, x)
		}
		p.Go("reader", func(ep rdma.Endpoint) {
			d := NewReader(p.r)
			look := func(at time.Duration, live int) {
				for ep.Now() < at {
					ep.Sleep(500 * time.Millisecond)
					if _, _, err := d.Processes(ep, wall(ep)); err != nil {
						t.Error(err)
					}
				}
				found, more, err := d.Processes(ep, wall(ep))
				if err != nil || len(found) < records || len(found) > records*nodes || len(found)+more != live {
					t.Errorf("after %v there are %d processes and %d more (%v), want %d in all, "+
						"%d of them with a record on each of %d nodes",
						at, len(found), more, err, live, records, nodes)
				}
				for i := range found {
					if !isTold(&found[i]) {
						t.Errorf("this was never told: %+v", found[i])
					}
				}
			}
			look(2*time.Second, processes)
			look(27*time.Second, processes-records/2)
		})
		p.run()
		for i, x := range all {
			if x.done == (i < records/2) {
				t.Fatalf("process %d ended: %v", i, x.done)
			}
		}
	})
}

// TestStopped stops a process until its record is another's, and lets it go on: what it wrote to a
// record that is not its own any more is seen by none, and it gets another record.
func TestStopped(t *testing.T) {
	forSeeds(t, 40, func(t *testing.T, seed uint64) {
		o := sim.Hostile(seed)
		o.Faults = sim.Faults{{Kind: sim.StallFault, Client: "slow", Verb: 5 + seed%20, For: 3 * StaleAfter}}
		p := newPool(t, o, 1, 1)
		slow := &teller{life: 3, times: 60, pause: time.Second}
		next := &teller{life: 4, times: 35, pause: time.Second}
		p.Go("slow", slow.run(p))
		p.Go("next", func(ep rdma.Endpoint) {
			ep.Sleep(time.Second)
			next.run(p)(ep)
			next.w.Release(ep)
		})
		p.Go("reader", func(ep rdma.Endpoint) {
			for range 50 {
				watch(p, 1)(ep)
				ep.Sleep(time.Second)
			}
		})
		p.run()
		if !slow.done || !slow.w.Recorded() || slow.acked != slow.times {
			t.Errorf("the slow one, that told %d times, has a record: %v", slow.acked, slow.w.Recorded())
		}
		p.Go("reader behind", watch(p, 1, slow))
		p.run()
	})
}

// TestViewChanges takes nodes away from the view while processes publish: their records are on
// others by then.
func TestViewChanges(t *testing.T) {
	forSeeds(t, 40, func(t *testing.T, seed uint64) {
		p := newPool(t, sim.Hostile(seed), 4, 4)
		var all []*teller
		for i := range uint64(3) {
			x := &teller{life: 10 + i, times: 20, pause: time.Second}
			p.Go(fmt.Sprint("teller ", i), x.run(p))
			all = append(all, x)
		}
		p.Go("master", func(ep rdma.Endpoint) {
			for n := range 3 {
				ep.Sleep(4 * time.Second)
				if ep.Rand().IntN(2) == 0 {
					_ = p.KillNode(n) // or it is well, and the view is all that changes
				}
				p.expel(uint64(n), n)
			}
		})
		p.Go("reader", func(ep rdma.Endpoint) {
			for ep.Now() < 18*time.Second {
				watch(p, 1)(ep)
				ep.Sleep(700 * time.Millisecond)
			}
			watch(p, 1, all...)(ep)
		})
		p.run()
		for _, x := range all {
			for _, h := range x.w.homes {
				if h.node != 3 {
					t.Errorf("process %d is on node %d, which is gone", x.life, h.node)
				}
			}
		}
	})
}

// expel takes a node from the view, in an epoch of its own.
func (p *pool) expel(epoch uint64, n int) {
	busy := rdma.State{Epoch: epoch + 1, Busy: true}
	if ok, err := p.Advance(rdma.State{Epoch: epoch}, busy); !ok || err != nil {
		p.t.Errorf("advance: %v, %v", ok, err)
	}
	if ok, err := p.SetMember(epoch+1, n, rdma.Member{}, rdma.Member{Gone: true}); !ok || err != nil {
		p.t.Errorf("set member: %v, %v", ok, err)
	}
	if err := p.Fence(epoch + 1); err != nil {
		p.t.Error(err)
	}
	if ok, err := p.Advance(busy, rdma.State{Epoch: epoch + 1}); !ok || err != nil {
		p.t.Errorf("advance: %v, %v", ok, err)
	}
}

// Recorded reports whether the writer has room for what it publishes. Without, its process is only
// counted.
func (w *Writer) Recorded() bool {
	return slices.ContainsFunc(w.homes, func(h home) bool { return h.place < w.r.records })
}
