package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check"
)

// load is what the workers of a history do.
type load struct {
	workers, keys int
	ops           int // of each worker
	seed          uint64
	maxValue      int           // bytes
	pause         time.Duration // the longest between two operations
	// killed: others die and are not recovered, so a worker may leave a write of unknown outcome
	// behind.
	killed bool
	// cut: connections are cut. A worker ends what it began all the same, since it waits for longer
	// than any node is away. Where the registry is out of reach just then, the fabric's next Open
	// gives the worker's identity back.
	cut      bool
	patience int           // timeouts and unknown outcomes that a worker bears before it stops; 0: any number
	ended    *atomic.Int64 // counts operations that have ended; nil: nothing does
}

func (l *load) key(i int) []byte { return fmt.Appendf(nil, "key-%d", i) }

// work plays worker w: a third reads, the rest inserts, updates and deletes.
func (l *load) work(w int, r *check.Recorder, ep rdma.Endpoint) {
	rng := rand.New(rand.NewPCG(l.seed, uint64(w)))
	waits := 0
	for i := range l.ops {
		err := pick(rng).Do(r, l.key(rng.IntN(l.keys)), check.MakeValue(nil, w, i+1, l.size(rng)))
		if l.ended != nil {
			l.ended.Add(1)
		}
		if errors.Is(err, client.ErrUncertain) || errors.Is(err, rdma.ErrTimeout) {
			if waits++; waits == l.patience {
				return
			}
		}
		if l.pause > 0 {
			ep.Sleep(time.Duration(rng.Int64N(int64(l.pause))))
		}
	}
}

func pick(rng *rand.Rand) check.Kind {
	switch n := rng.IntN(20); {
	case n < 7:
		return check.Get
	case n < 12:
		return check.Update
	case n < 16:
		return check.Insert
	}
	return check.Delete
}

// do carries out one operation; the recorder keeps its answer.
// size is small most of the time, so that size classes mix.
func (l *load) size(rng *rand.Rand) int {
	if rng.IntN(6) == 0 {
		return rng.IntN(l.maxValue + 1)
	}
	return rng.IntN(min(64, l.maxValue) + 1)
}

// eager gives way to other workers around a fourth of its posts: verbs that run in the caller never
// wait, so that without it a worker would come far before another one gets a turn.
type eager struct {
	rdma.Endpoint
	rng *rand.Rand
}

func (e *eager) Post(b *rdma.Batch) error {
	n := e.rng.IntN(8)
	if n == 0 {
		runtime.Gosched()
	}
	err := e.Endpoint.Post(b)
	if n == 1 {
		runtime.Gosched()
	}
	return err
}

// Listen implements rdma.Messenger.
func (e *eager) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) { return rdma.Listen(e.Endpoint, o) }

// histories has many workers on few keys, in real time and on real processors.
func (h *Harness) histories() error {
	for _, l := range []load{
		{workers: 8, keys: 1, ops: 250, seed: 1},
		{workers: 8, keys: 4, ops: 1000, seed: 2},
		{workers: 16, keys: 24, ops: 500, seed: 3},
	} {
		f, end, err := h.fresh(l.seed)
		if err != nil {
			return err
		}
		if err := errors.Join(h.history(f, l), end()); err != nil {
			return fmt.Errorf("%d workers on %d keys: %w", l.workers, l.keys, err)
		}
	}
	return nil
}

// historiesOn checks histories on a fabric with verbs that take time.
func (h *Harness) historiesOn(on real) (err error) {
	f, _, end, err := on.make(h)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	return h.history(f, load{workers: 8, keys: 4, ops: 500, seed: 2, maxValue: h.MaxValue})
}

func (h *Harness) history(f rdma.Fabric, l load) error {
	l.maxValue = h.MaxValue
	l.ops /= *part
	recorders, err := h.play(f, l, 0, nil)
	if err != nil {
		return err
	}
	hist := merge(recorders)
	if err := varied(hist); err != nil {
		return err
	}
	if err := judge(hist, false, 0); err != nil {
		return err
	}
	return h.sound(f, false)
}

// play runs the workers of l on goroutines; they are numbered from first on, and
// prepare, if any, sees each recorder before.
func (h *Harness) play(f rdma.Fabric, l load, first int, prepare func(int, *check.Recorder) error) ([]*check.Recorder,
	error) {
	recorders := make([]*check.Recorder, l.workers)
	workers := make([]*worker, l.workers)
	for i := range workers {
		w, err := h.worker(f, fmt.Sprintf("worker %d", first+i), func(ep rdma.Endpoint) rdma.Endpoint {
			return &eager{ep, rand.New(rand.NewPCG(l.seed, uint64(first+i)))}
		})
		if err != nil {
			return nil, err
		}
		workers[i] = w
		recorders[i] = check.NewRecorder(first+i, w, w.ep.Now)
		if prepare != nil {
			if err := prepare(first+i, recorders[i]); err != nil {
				return nil, err
			}
		}
	}
	var g errgroup.Group
	for i, w := range workers {
		g.Go(func() error {
			l.work(first+i, recorders[i], w.ep)
			if l.cut {
				err, gone := w.Store.Close(), w.ep.Close()
				if errors.Is(gone, rdma.ErrUnreachable) {
					gone = nil
				}
				return errors.Join(err, gone)
			}
			err := w.Close()
			if l.killed && errors.Is(err, client.ErrUncertain) {
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("close: %w", err)
	}
	return recorders, nil
}

func merge(recorders []*check.Recorder) check.History {
	var h check.History
	for _, r := range recorders {
		if r != nil {
			h = append(h, r.History()...)
		}
	}
	return h
}

// varied reports whether a history has every answer in it, without which it would show little.
func varied(h check.History) error {
	for _, want := range []struct {
		kind   check.Kind
		answer check.Answer
	}{
		{check.Get, check.OK}, {check.Get, check.NotFound},
		{check.Insert, check.OK}, {check.Insert, check.Exists},
		{check.Update, check.OK}, {check.Update, check.NotFound},
		{check.Delete, check.OK}, {check.Delete, check.NotFound},
	} {
		if h.Count(want.kind, want.answer) == 0 {
			return errors.Join(judge(h, false, 0),
				fmt.Errorf("among %d operations no %s answered %q", len(h), want.kind, want.answer))
		}
	}
	return nil
}

// judge reports whether every answer is one that a Store may give, and whether they fit together.
// Only the crash of another client excuses an operation that ends at its timeout, with an outcome
// that it knows (check.TimedOut) or does not.
func judge(h check.History, crashed bool, slack time.Duration) error {
	var errs []error
	fail := func(wrong check.History) {
		if len(wrong) > 0 {
			errs = append(errs, fmt.Errorf("%d of %d operations failed, the first is: %s", len(wrong), len(h),
				&wrong[0]))
		}
	}
	fail(h.With(check.Failed, check.Refused))
	if !crashed {
		fail(h.With(check.TimedOut, check.Uncertain, check.Pending))
	}
	return errors.Join(append(errs, check.Linearizable(h, check.Options{Slack: slack}))...)
}
