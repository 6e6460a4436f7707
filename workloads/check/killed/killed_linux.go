package killed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/workloads/check/wait"
)

// Pool is an open pool, as one process has it.
type Pool struct {
	Fabric    rdma.Fabric
	Open      func(ep rdma.Endpoint) (client.Store, error)
	Recoverer cluster.NewRecoverer
	Check     func(f rdma.Fabric) (client.Report, error)
}

// Test is a pool, and how it is used.
type Test struct {
	Make      func(name string) (Pool, error) // in shared memory
	Open      func(name string) (Pool, error) // what Make made
	Processes []int                           // how many workers each of them has
	Keys      int                             // of each worker, which it alone writes
	Shared    int                             // keys that all write
	MaxValue  int                             // bytes
	Pause     time.Duration                   // of a worker between two operations, at most; 0: there is none
	Every     time.Duration                   // from one order to a process to kill itself, at a verb, to the next
	Round     time.Duration                   // behind which all is stopped, recovered and looked at
	Rounds    int
	// Recover bounds how long the dead wait for the pool's master; 0: until the end of the round.
	Recover time.Duration
	// Lease is for how long an operation may wait for a dead client, or for two, one behind the
	// other. Beside it, it takes up to four times as long as processors kept a worker of any
	// process waiting meanwhile. 0: that is not judged.
	Lease time.Duration
}

// delayShare is how many of the longest delays an operation may meet: see Test.Lease.
const delayShare = 4

// place is where a process works, one after the other.
type place struct {
	Test       string // the test that starts the process
	Pool       string
	Ledger     string
	First      int // of its workers
	Workers    int
	Generation int
}

// counts are what a Run has met.
type counts struct {
	kills, clients int           // processes, and their workers, that were killed
	ops, acked     uint64        // operations, and writes that were acknowledged
	doubts         uint64        // keys that a process was writing when it was killed
	slow           uint64        // operations that took longer than Test.Lease
	several        uint64        // of them those that took longer than Test allows with one client that died
	slowest, delay time.Duration // the longest of them, and the longest delay that one of them met
}

func (c counts) String() string {
	return fmt.Sprintf("%d processes with %d clients were killed, and %d writes of theirs; %d operations, %d writes "+
		"acknowledged; %d took longer than a lease, %v at most, where processors kept a worker waiting for up to %v; "+
		"%d of them met two that died",
		c.kills, c.clients, c.doubts, c.ops, c.acked, c.slow, c.slowest.Round(time.Millisecond),
		c.delay.Round(time.Millisecond),
		c.several)
}

// Run kills processes, and judges what the others find: see Test. What that says is logged.
func (x Test) Run(t *testing.T) {
	t.Helper()
	if text := os.Getenv(env); text != "" {
		var p place
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		if p.Test == t.Name() {
			if err := x.child(p); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	name := fmt.Sprintf("killed-%d-%d", os.Getpid(), pools.Add(1))
	pool, err := x.Make(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(pool.Fabric.Close(), shm.Remove(name, true)); err != nil {
			t.Error(err)
		}
	}()
	r := &run{Test: x, t: t, pool: pool, rng: rand.New(rand.NewPCG(uint64(x.Rounds), 1))}
	folder, _, err := shm.Room() // where no store waits for a disk
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, name+".ledger")
	defer os.Remove(file)
	first := 0
	for _, n := range x.Processes {
		r.places = append(r.places, &process{place: place{
			Test: t.Name(), Pool: name, Ledger: file, First: first, Workers: n,
		}})
		first += n
	}
	if r.ledger, err = mapLedger(file, first, x.Keys); err != nil {
		t.Fatal(err)
	}
	r.judged = make([]uint64, first)
	for i := range x.Rounds {
		if err := r.round(); err != nil {
			t.Fatalf("round %d, behind %d kills: %v", i, r.kills, err)
		}
	}
	t.Log(r.counts)
	if r.kills == 0 || r.acked < uint64(r.kills) {
		t.Error("that shows little")
	}
}

// pools numbers those of a test's program.
var pools atomic.Int64

// run is a Run at work.
type run struct {
	Test
	counts
	t      *testing.T
	pool   Pool
	rng    *rand.Rand
	ledger *ledger
	places []*process
	judged []uint64        // slow operations of each worker
	killed []time.Duration // when the last processes died
}

// process is the one that works in a place now.
type process struct {
	place
	*exec.Cmd
	said   bytes.Buffer
	killed bool          // or was ordered to kill itself
	shot   time.Duration // when it was killed; 0: it was not, though it may have killed itself
	over   chan struct{} // closed when it has ended
}

// pattern matches a test, and its subtests, by name.
func pattern(test string) string { return "^" + strings.ReplaceAll(test, "/", "$/^") + "$" }

// start starts the next process of a place.
func (p *process) start() error {
	p.Generation++
	p.killed, p.shot = false, 0
	text, err := json.Marshal(p.place)
	if err != nil {
		return err
	}
	p.Cmd = exec.Command(os.Args[0], "-test.run="+pattern(p.Test), "-test.count=1")
	p.Env = append(os.Environ(), env+"="+string(text))
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.said.Reset()
	p.Stdout, p.Stderr, p.over = &p.said, &p.said, make(chan struct{})
	if err := p.Start(); err != nil {
		return err
	}
	go func() {
		_ = p.Wait() // how it ended is asked later
		close(p.over)
	}()
	return nil
}

// kill kills the process at once. One that has ended by itself has failed.
func (p *process) kill() error {
	if !p.killed && p.ended() {
		return p.failed()
	}
	p.killed = true
	if p.shot == 0 {
		p.shot = realtime.Now()
	}
	_ = p.Process.Kill() // which says that it has ended, where it has
	return nil
}

// failed is how a process ended by itself.
func (p *process) failed() error {
	said := p.said.Bytes()
	return fmt.Errorf("process %d of worker %d ended by itself: %v\n%s", p.Generation, p.First, p.ProcessState,
		said[:min(len(said), 4000)])
}

// ended reports whether the process is gone. Until then its workers may do something yet.
func (p *process) ended() bool {
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

// round kills processes for a while, then all that are left, recovers all, and looks at what there
// is.
func (r *run) round() error {
	for _, p := range r.places {
		if err := r.start(p); err != nil {
			return err
		}
	}
	over := make(chan struct{})
	var group sync.WaitGroup
	var recovered error
	if r.Recover > 0 {
		rng := rand.New(rand.NewPCG(uint64(r.kills), 2)) // here, as killing counts on
		group.Go(func() { recovered = r.keep(over, rng) })
	}
	err := r.killing()
	for _, p := range r.places {
		err = errors.Join(err, p.kill())
	}
	for _, p := range r.places { // which may take seconds on a busy machine
		<-p.over
		r.buried(p)
	}
	close(over)
	group.Wait()
	if err = errors.Join(err, recovered); err != nil {
		return err
	}
	time.Sleep(settled)
	if err := r.judgeSlow(); err != nil {
		return err
	}
	if err := r.recover(); err != nil {
		return fmt.Errorf("recover all: %w", err)
	}
	return r.audit()
}

// mostKilled bounds the kills that are remembered: those of the time of which delays are.
const mostKilled = 1 << 12

// killing kills one process after the other.
func (r *run) killing() error {
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for end := time.Now().Add(r.Round); time.Now().Before(end); {
		<-tick.C
		for _, p := range r.places {
			if p.killed {
				if err := r.succeed(p); err != nil {
					return err
				}
			}
		}
		if p := r.places[r.rng.IntN(len(r.places))]; !p.killed {
			if err := r.order(p); err != nil {
				return err
			}
			r.kills, r.clients = r.kills+1, r.clients+p.Workers
		}
		if err := errors.Join(r.unended(), r.judgeSlow()); err != nil {
			return err
		}
	}
	return nil
}

// order has one of a process's workers kill the process at a verb.
func (r *run) order(p *process) error {
	if p.ended() {
		return p.failed()
	}
	verb := 1 + r.rng.Uint64N(mostVerbs)
	if r.rng.IntN(rareShare) == 0 {
		verb = 1 + r.rng.Uint64N(rareVerbs)
	}
	p.killed = true
	r.ledger.worker(p.First + r.rng.IntN(p.Workers))[orderAt].Store(verb)
	return nil
}

// succeed starts the next process in the place of one that was ordered to kill itself. One that did
// not come to the verb is killed now, wherever it is, and has a successor later.
func (r *run) succeed(p *process) error {
	if !p.ended() {
		return p.kill()
	}
	if s, ok := p.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
		return p.failed()
	}
	if !r.buried(p) {
		return p.failed()
	}
	return r.start(p)
}

// buried notes when a process that has ended was killed, by itself or by this one. When this one
// learned of it says little: a processor may have kept it waiting. It reports false of a process
// that something else has killed.
func (r *run) buried(p *process) bool {
	died := p.shot
	for i := range p.Workers {
		if own := time.Duration(r.ledger.worker(p.First + i)[diedAt].Load()); own > 0 && (died == 0 || own < died) {
			died = own
		}
	}
	r.killed = append(r.killed[max(0, len(r.killed)-mostKilled):], died)
	return died > 0
}

// start starts the next process of a place, without what the last one left in flight.
func (r *run) start(p *process) error {
	for i := range p.Workers {
		own := r.ledger.worker(p.First + i)
		own[orderAt].Store(0)
		own[beganAt].Store(0)
		own[diedAt].Store(0)
		own[gaugedAt].Store(0)
	}
	return p.start()
}

// keep recovers the dead again and again, behind pauses.
func (r *run) keep(over chan struct{}, rng *rand.Rand) error {
	for {
		select {
		case <-over:
			return nil
		case <-time.After(time.Duration(rng.Int64N(int64(r.Recover)))):
		}
		if err := r.recover(); err != nil {
			return err
		}
	}
}

// recover does what a master does for clients that died.
func (r *run) recover() error {
	ep, err := r.pool.Fabric.Open("keeper")
	// all identities are in use: those of the dead, too, which the next master recovers
	if errors.Is(err, rdma.ErrFull) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = cluster.Once(ep, r.pool.Fabric, r.pool.Recoverer, cluster.Options{Lease: 300 * time.Millisecond})
	return errors.Join(err, ep.Close())
}

// audit looks at all keys, and checks the pool, when all that died were recovered: nothing is in
// doubt any more.
func (r *run) audit() error {
	ep, err := r.pool.Fabric.Open("auditor")
	if err != nil {
		return err
	}
	s, err := r.pool.Open(ep)
	if err != nil {
		return err
	}
	for number := range r.ledger.workers {
		w := &worker{Test: &r.Test, ledger: r.ledger, number: number, own: r.ledger.worker(number), store: s,
			trips: func() uint64 { return 0 }}
		r.count(w)
		for k := range r.Keys {
			e := r.ledger.key(number, k)
			if found, ok := e.inherit(); found && !ok {
				return fmt.Errorf("key %d of worker %d: %d writes in doubt", k, number, mostDoubts)
			}
			is, err := w.look(k)
			if err != nil {
				return err
			}
			e.settle(is)
		}
		for k := range r.Shared {
			if _, err := w.read(shared|get, sharedKey(k)); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(s.Close(), ep.Close()); err != nil {
		return err
	}
	report, err := r.pool.Check(r.pool.Fabric)
	if err == nil && len(report.Damage)+len(report.Waiting)+len(report.Unchecked) > 0 {
		err = fmt.Errorf("damage: %q, waiting: %q, unchecked: %q", report.Damage, report.Waiting, report.Unchecked)
	}
	return err
}

// count adds what a worker has done since the last round.
func (r *run) count(w *worker) {
	r.ops += w.own[opsAt].Swap(0)
	r.acked += w.own[ackedAt].Swap(0)
	r.doubts += w.own[foundAt].Swap(0)
	w.own[beganAt].Store(0)
}

// child works in a place until the process is killed.
func (x *Test) child(p place) error {
	workers := 0
	for _, n := range x.Processes {
		workers += n
	}
	l, err := mapLedger(p.Ledger, workers, x.Keys)
	if err != nil {
		return err
	}
	g := newGauges(l, p.First)
	go g.sleep()
	go g.threads()
	pool, err := x.Open(p.Pool)
	if err != nil {
		return err
	}
	ends := make(chan error, p.Workers)
	for i := range p.Workers {
		go func() {
			ends <- x.worker(&pool, g, p.First+i, p.Generation)
		}()
	}
	return <-ends
}

// worker is one of a process's, until that is killed.
func (x *Test) worker(p *Pool, g *gauges, number, generation int) error {
	own := g.worker(number)
	s, ep, err := p.open(fmt.Sprint("worker-", number), g.ledger, own)
	if err != nil {
		return err
	}
	count := ep.Counters()
	w := &worker{Test: x, ledger: g.ledger, gauges: g, number: number, own: own, store: s,
		rng: rand.New(rand.NewPCG(uint64(generation), uint64(number))), trips: func() uint64 { return count.Trips }}
	return w.work()
}

// open opens a worker, as soon as there is an identity for it.
func (p *Pool) open(name string, l *ledger, own []atomic.Uint64) (client.Store, rdma.Endpoint, error) {
	for end := time.Now().Add(wait.Hang); ; time.Sleep(time.Millisecond) {
		ep, err := p.Fabric.Open(name)
		if err == nil {
			ep = mortal{ep, l, &own[orderAt], &own[beganAt], &own[diedAt]}
			s, err := p.Open(ep)
			return s, ep, err
		}
		if !errors.Is(err, rdma.ErrFull) || time.Now().After(end) {
			return nil, nil, err
		}
	}
}
