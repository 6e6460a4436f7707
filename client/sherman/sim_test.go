package sherman

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// virtual skips a test of many runs in virtual time under the race detector, which finds nothing
// where one task runs at a time.
func virtual(t testing.TB) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
}

// play is a tree in virtual time, and workers that meet on it.
type play struct {
	*sim.Sim
	format  string
	history []*check.Recorder
	errs    []error
	stats   Stats
	players []*sim.Worker
	kept    bool // a keeper is at work
}

func newPlay(format string, seed uint64, nodes int, faults ...sim.Fault) (*play, error) {
	p := tiny(format, nodes)
	o := sim.Hostile(seed)
	o.Nodes, o.Memory, o.Clients, o.Handler, o.Faults = nodes, p.Memory, p.Clients, node.Serve, faults
	d := &play{Sim: sim.New(o), format: format}
	return d, p.make(d.Sim)
}

// enter starts a worker, which does f and closes its store.
func (d *play) enter(name string, o Options, f func(s *Store, r *check.Recorder) error) *sim.Worker {
	n := len(d.history)
	d.history = append(d.history, nil)
	w := d.Go(name, func(ep rdma.Endpoint) {
		s, err := Open(ep, o)
		if err == nil {
			d.history[n] = check.NewRecorder(n, s, ep.Now)
			err = f(s, d.history[n])
		}
		if err == nil {
			err = s.Close()
			d.stats.Splits, d.stats.Merges, d.stats.Stale = d.stats.Splits+s.stats.Splits,
				d.stats.Merges+s.stats.Merges, d.stats.Stale+s.stats.Stale
		}
		if err != nil {
			d.errs = append(d.errs, fmt.Errorf("%s: %w", name, err))
		}
	})
	d.players = append(d.players, w)
	if d.format == DTX && !d.kept {
		d.keep()
	}
	return w
}

// detection is how often a keeper looks for clients that are dead, and tenure its lease.
const (
	detection = time.Millisecond
	tenure    = 4 * detection
)

// keep starts a keeper, which ends when no client works, and none is dead that it has not
// recovered. A tree over package rtx needs none.
func (d *play) keep() {
	d.kept = true
	d.Go("keeper", func(ep rdma.Endpoint) {
		err := cluster.Keep(ep, d.Sim, NewRecoverer, cluster.Options{Lease: tenure, Tick: detection, Stop: d.quiet})
		if d.kept = false; err != nil {
			d.errs = append(d.errs, fmt.Errorf("keeper: %w", err))
		}
	})
}

func (d *play) quiet() bool {
	works := func(w *sim.Worker) bool { return !w.Finished() && !w.Crashed() }
	dead := func(c rdma.Client) bool { return !c.Alive && !c.Held }
	return !slices.ContainsFunc(d.players, works) && !slices.ContainsFunc(d.Clients(), dead)
}

// end recovers the dead, compares all answers with each other, and looks at the tree.
func (d *play) end() error {
	defer d.Close()
	if err := d.Run(); err != nil {
		return err
	}
	err := errors.Join(d.errs...)
	var h check.History
	for _, r := range d.history {
		if r != nil {
			h = append(append(h, r.History()...), r.Found()...)
		}
	}
	err = errors.Join(err, check.Linearizable(h, check.Options{}))
	d.Go("end", func(ep rdma.Endpoint) {
		_, e := cluster.Once(ep, d.Sim, NewRecoverer, cluster.Options{Lease: tenure})
		err = errors.Join(err, e)
	})
	if e := d.Run(); e != nil {
		return errors.Join(err, e)
	}
	report, e := Check(d.Sim)
	if len(report.Damage)+len(report.Waiting)+len(report.Unchecked) > 0 {
		e = errors.Join(e, fmt.Errorf("check: damaged: %v, waiting: %v, unseen: %v", report.Damage, report.Waiting,
			report.Unchecked))
	}
	return errors.Join(err, e)
}

// unsure reports whether an operation of a history may end so.
func unsure(err error) bool {
	for _, e := range []error{client.ErrExists, client.ErrNotFound} {
		if errors.Is(err, e) {
			return true
		}
	}
	return err == nil
}

// TestScans: scans beside clients that insert, update and delete, split and merge, and die, on a
// network that tears, reorders and delays.
func TestScans(t *testing.T) { both(t, testScans) }

func testScans(t *testing.T, format string) {
	virtual(t)
	var all Stats
	scans := 0
	count := seeds.Each(t, 60, func(seed uint64) error {
		rng := rand.New(rand.NewPCG(seed, 1))
		faults := []sim.Fault{{Kind: sim.CrashFault, Client: "writer 0", Verb: 30 + uint64(rng.IntN(400))}}
		d, err := newPlay(format, seed, 1+int(seed%3), faults...)
		if err != nil {
			return err
		}
		var keys []string
		for i := range 9 {
			keys = append(keys, fmt.Sprint("key", i))
		}
		for w := range 3 {
			rng := rand.New(rand.NewPCG(seed, uint64(10+w)))
			d.enter(fmt.Sprint("writer ", w), Options{}, func(s *Store, r *check.Recorder) error {
				for n := range 40 {
					key := []byte(keys[rng.IntN(len(keys))])
					value := check.MakeValue(nil, w, n+1, 8+rng.IntN(2)*20)
					kind := []check.Kind{check.Insert, check.Insert, check.Update, check.Delete}[rng.IntN(4)]
					if err := kind.Do(r, key, value); !unsure(err) {
						return err
					}
				}
				return nil
			})
		}
		for w := range 2 {
			rng := rand.New(rand.NewPCG(seed, uint64(20+w)))
			o := Options{}
			if w == 1 {
				o.CacheBytes = new(0)
			}
			d.enter(fmt.Sprint("scanner ", w), o, func(s *Store, r *check.Recorder) error {
				for range 25 {
					scans++
					if err := r.Scan(keys, fmt.Sprint("key", rng.IntN(5)), rng.IntN(12)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		err = d.end()
		all.Splits, all.Merges, all.Stale = all.Splits+d.stats.Splits, all.Merges+d.stats.Merges,
			all.Stale+d.stats.Stale
		return err
	})
	if all.Splits < 3*count || all.Merges < count || all.Stale < 3*count {
		t.Errorf("in %d runs: %+v", count, all)
	}
	t.Logf("%d runs, %d scans, %+v", count, scans, all)
}

// crash is an operation on a tree with some pairs. Its client dies behind one of
// its verbs. So does the next client, and the last one lives.
type crash struct {
	name   string
	before string // keys of one letter that are there
	deep   int    // bytes of a value
	do     func(r *check.Recorder) error
}

func value(n, size int) []byte { return check.MakeValue(nil, 9, n, size) }

var crashes = []crash{
	{"insert", "b", 8, func(r *check.Recorder) error { return r.Insert([]byte("a"), value(1, 8)) }},
	{"insert, beside", "b", 8, func(r *check.Recorder) error { return r.Insert([]byte("a"), value(1, 60)) }},
	{"insert that splits the root", "bd", 8, func(r *check.Recorder) error {
		return r.Insert([]byte("c"), value(1, 60))
	}},
	{"insert that splits a leaf", "abdf", 30, func(r *check.Recorder) error {
		return r.Insert([]byte("c"), value(1, 8))
	}},
	{"insert that splits three levels", "bcegikmoqsuwyz", 8,
		func(r *check.Recorder) error { return r.Insert([]byte("d"), value(1, 60)) }},
	{"update", "ab", 8, func(r *check.Recorder) error { return r.Update([]byte("a"), value(1, 8)) }},
	{"update, beside", "ab", 40, func(r *check.Recorder) error { return r.Update([]byte("a"), value(1, 60)) }},
	{"update that grows", "ab", 8, func(r *check.Recorder) error { return r.Update([]byte("a"), value(1, 60)) }},
	{"delete", "ab", 8, func(r *check.Recorder) error { return r.Delete([]byte("a")) }},
	{"delete, beside", "ab", 40, func(r *check.Recorder) error { return r.Delete([]byte("a")) }},
	{"delete that lowers the root", "abc", 40, func(r *check.Recorder) error {
		return errors.Join(r.Delete([]byte("a")), r.Delete([]byte("b")))
	}},
	{"delete that merges", "abcdefghij", 8, func(r *check.Recorder) error {
		return errors.Join(r.Delete([]byte("c")), r.Delete([]byte("d")), r.Delete([]byte("e")), r.Delete([]byte("f")))
	}},
}

// play lets clients die behind so many verbs, one after the other, and returns how many verbs the
// first one that lives has sent. The first client does the operation, and the next ones everything.
func (c *crash) play(format string, seed uint64, verbs ...uint64) (sent uint64, err error) {
	d, err := newPlay(format, seed, 1+int(seed%2))
	if err != nil {
		return 0, err
	}
	keys, all := []string{"a", "b", "c", "d", "e"}, strings.Split("abcdefghijklmnopqrstuvwxyz", "")
	d.enter("loader", Options{}, func(s *Store, r *check.Recorder) error {
		for i, k := range []byte(c.before) {
			if err := r.Insert([]byte{k}, check.MakeValue(nil, 7, i+1, c.deep)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(d.Run(), errors.Join(d.errs...)); err != nil {
		return 0, errors.Join(err, d.Close())
	}
	var start func(i int)
	start = func(i int) {
		w := d.enter(fmt.Sprint("client ", i), Options{CacheBytes: new(i % 2 * DefaultCache)},
			func(s *Store, r *check.Recorder) error {
				if i == 0 {
					return c.do(r)
				}
				for n, k := range keys { // whatever there is, it goes on
					began := s.ep.Now()
					if _, err := r.Get([]byte(k)); !unsure(err) {
						return err
					}
					for _, kind := range []check.Kind{check.Update, check.Delete, check.Insert} {
						if err := kind.Do(r, []byte(k), check.MakeValue(nil, 20+i, 10*n+int(kind),
							8+20*(n%2))); !unsure(err) {
							return err
						}
					}
					// All locks of the dead client end with the first one that is
					// waited for: behind its lease, or when the keeper has found
					// and recovered the client.
					if took, most := s.ep.Now()-began, time.Duration(len(verbs)+1)*2*cmp.Or(s.Lease,
						detection); took > most {
						return fmt.Errorf("operations on %q took %v, %v at most", k, took, most)
					}
				}
				return r.Scan(all, "", 100)
			})
		if i < len(verbs) {
			d.CrashAt(w, verbs[i])
			w.WhenCrashed(func() { start(i + 1) })
		}
		d.Go("watch", func(ep rdma.Endpoint) {
			for !w.Finished() && !w.Crashed() {
				ep.Sleep(time.Microsecond)
			}
			if i == len(verbs) {
				sent = w.Sent()
			}
			if i == 0 && w.Finished() {
				start(1)
			}
		})
	}
	start(0)
	return sent, d.end()
}

// TestCrashes: a client dies behind each verb of each operation, and a second one
// behind verbs of what it does then. All others go on, at once and without a
// master, or with DTX when the keeper has recovered the dead. The tree is as it
// was before the operation, or as it is behind it.
func TestCrashes(t *testing.T) { both(t, testCrashes) }

func testCrashes(t *testing.T, format string) {
	virtual(t)
	for i := range crashes {
		c := &crashes[i]
		t.Run(c.name, func(t *testing.T) {
			runs, seed := 0, uint64(100*i)
			try := func(verbs ...uint64) uint64 {
				seed++
				runs++
				sent, err := c.play(format, seed, verbs...)
				if err != nil {
					t.Fatalf("seed %d, dead behind verbs %v: %v", seed, verbs, err)
				}
				return sent
			}
			all, step := try(), seeds.Step(16, 128)
			for verb := uint64(1); verb <= all; verb++ {
				n := try(verb)
				for second := 1 + 5*verb%step; second <= n; second += step {
					try(verb, second)
				}
			}
			t.Logf("%d runs, %d verbs", runs, all)
		})
	}
}
