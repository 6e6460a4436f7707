package swarm

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// TestStoreContention lets a few workers meet on a few keys that come and go, SWARM's and DM-ABD's,
// where a minority of nodes dies, and clients do, and the network and clocks are as in
// TestContention. No operation fails, their answers are linearizable, and the pool is sound.
// $FARKV_SEEDS and $FARKV_SEED choose the seeds.
func TestStoreContention(t *testing.T) {
	for _, apart := range []bool{false, true} {
		t.Run(formatName(false, apart), func(t *testing.T) {
			var answers [5]int
			count := seeds.Each(t, 300, func(seed uint64) error {
				r := drawStore(seed, apart)
				if err := r.play(&answers); err != nil {
					return fmt.Errorf("%w\n%+v", err, r)
				}
				return nil
			})
			t.Logf("%v", answers)
			for kind, n := range answers[:4] {
				if n == 0 && count >= 100 {
					t.Errorf("no %v succeeded", check.Kind(kind))
				}
			}
		})
	}
}

// storeRun is one run's plan.
type storeRun struct {
	run
	params Params
	cache  int
}

// drawStore plans a run. Its pool has a bucket for all keys in some, so that they meet there, too.
func drawStore(seed uint64, apart bool) *storeRun {
	rng := rand.New(rand.NewPCG(seed, 17))
	r := &storeRun{run: *draw(seed, []int{3, 3, 3, 5}[rng.IntN(4)])}
	r.keys, r.ops = 1+rng.IntN(3), 4+rng.IntN(12)
	r.cache = []int{-1, 1 << 10}[rng.IntN(2)]
	r.slow = 0
	r.params = Params{Replicas: r.shape.Replicas, Words: r.shape.Words, Locks: r.shape.Locks, Clients: 16,
		PairBytes: 64, Apart: apart, Regions: 2 * r.nodes, Objects: 400, Values: Buffers{1, 2000},
		Index: Buffers{1, 1000}, Buckets: uint64(1 + 3*rng.IntN(2)), Timeout: time.Second}
	if apart {
		r.params.Words, r.params.Locks = 1, 0
	}
	r.options.Clients = r.params.Clients
	return r
}

func (r *storeRun) play(answers *[5]int) error {
	l, err := newPlan(r.params, r.nodes)
	if err != nil {
		return err
	}
	r.options.Memory, r.options.Handler = l.bytes, node.Serve
	s := sim.New(r.options)
	defer s.Close()
	if err := Make(s, r.params); err != nil {
		return err
	}
	recorders := make([]*check.Recorder, r.workers+1)
	var failed error
	enter := func(w int, name string, f func(ep rdma.Endpoint, r *check.Recorder)) *sim.Worker {
		return s.Go(name, func(ep rdma.Endpoint) {
			k, err := OpenStore(ep, StoreOptions{CacheBytes: new(r.cache), Apart: r.params.Apart})
			if err != nil {
				failed = fmt.Errorf("%s: %w", name, err)
				return
			}
			recorders[w] = check.NewRecorder(w, k, s.Now)
			f(ep, recorders[w])
			if err := k.Close(); err != nil {
				failed = fmt.Errorf("%s: %w", name, err)
			}
		})
	}
	var workers []*sim.Worker
	for w := range r.workers {
		workers = append(workers, enter(w, fmt.Sprintf("worker %d", w),
			func(ep rdma.Endpoint, s *check.Recorder) { r.work(w, ep, s) }))
	}
	if err := s.Run(); err != nil || failed != nil {
		return fmt.Errorf("run: %w, %w", err, failed)
	}
	enter(r.workers, "last", func(ep rdma.Endpoint, s *check.Recorder) {
		for n := range r.keys {
			s.Get(fmt.Appendf(nil, "key-%d", n))
			s.Update(fmt.Appendf(nil, "key-%d", n), []byte("last"))
			s.Get(fmt.Appendf(nil, "key-%d", n))
		}
	})
	if err := s.Run(); err != nil || failed != nil {
		return fmt.Errorf("run: %w, %w", err, failed)
	}
	for _, rec := range recorders {
		if rec != nil {
			for _, op := range rec.History().With(check.OK) {
				answers[op.Kind]++
			}
		}
	}
	if err := judge(recorders, false); err != nil {
		return err
	}
	return r.sound(s, workers)
}

// sound checks the pool. There are buffers without an owner only where a client died, or was cut
// off.
func (r *storeRun) sound(s *sim.Sim, workers []*sim.Worker) error {
	report, err := Check(s)
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	whole := true
	for _, f := range r.options.Faults {
		whole = whole && f.Kind != sim.CrashFault && f.Kind != sim.PartitionFault
	}
	if len(report.Damage) > 0 || whole && len(report.Waiting) > 0 {
		return fmt.Errorf("damage: %q, waiting: %q", report.Damage, report.Waiting)
	}
	return nil
}

func (r *storeRun) work(w int, ep rdma.Endpoint, s *check.Recorder) {
	rng := ep.Rand()
	for n := range r.ops {
		key, value := fmt.Appendf(nil, "key-%d", rng.IntN(r.keys)), check.MakeValue(nil, w, n+1, rng.IntN(50))
		switch rng.IntN(8) {
		case 0, 1:
			s.Insert(key, value)
		case 2:
			s.Delete(key)
		case 3, 4:
			s.Update(key, value)
		default:
			s.Get(key)
		}
		if r.pause > 0 {
			ep.Sleep(time.Duration(rng.Int64N(int64(r.pause))))
		}
	}
}
