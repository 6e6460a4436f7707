package cm_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/shards/cm"
	"github.com/farkv/farkv/workloads/check/seeds"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// run runs a world of a seed: candidates crash at some of their verbs, or stall, servers die, and
// are cut off.
func run(seed uint64) (*world, error) {
	o := sim.Hostile(seed)
	const troubled = 25 * time.Millisecond
	when := func(n uint64) time.Duration { return time.Duration(seed*n%uint64(troubled/1000)) * 1000 }
	if seed%2 == 0 {
		o.Faults = append(o.Faults,
			sim.Fault{Kind: sim.StallFault, Client: "candidate 1", At: when(7919), For: 3 * lease},
			sim.Fault{Kind: sim.PartitionFault, Client: "candidate 2", Node: int(seed % 5), At: when(104729),
				For: 2 * lease},
			sim.Fault{Kind: sim.PartitionFault, Client: fmt.Sprint("server ", seed%5), Node: sim.AnyNode,
				At:  when(6007),
				For: lease})
	}
	w := newWorld(seed, o, troubled, 5, int(seed%3%2))
	w.flaky = seed%4 == 3
	for _, v := range w.servers {
		if seed%5 == 0 { // it never hears of a commit from the manager
			v.deaf = func(q []byte) bool { return q[16] == 1 && v.c != nil && !v.c.Committed }
			break
		}
	}
	for i, v := range w.servers {
		if n := seed / 7 % 4; seed%7 == 1 && (n == 3 || n == uint64(i)) { // of one, or all about at once
			v.again = when(613) + time.Duration(i)*100*time.Microsecond
		}
	}
	for i := range seed % 3 {
		w.s.KillNodeAfter(int((seed/3+i*2)%5), when(31+i))
	}
	for i := range 2 {
		if seed>>i&1 == 1 {
			w.s.CrashAt(w.keepers[i], 1+seed*uint64(i+17)%400)
		}
	}
	return w, w.end()
}

// TestManager runs worlds: at any time one server at most serves a shard, nothing that was
// acknowledged is lost, and in the end all shards are served by the members that live, and
// replicated.
func TestManager(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	commits, moved, damaged := 0, 0, 0
	seeds.Each(t, 150, func(seed uint64) error {
		w, err := run(seed)
		commits, moved, damaged = commits+w.commits, moved+w.moved, damaged+w.damaged
		return err
	})
	t.Logf("%d terms were committed, %d shards were migrating, %d writes were damaged", commits, moved, damaged)
}

// plain is a world in which nothing goes wrong by itself. Node 1 dies when half of the troubled
// time is over.
func plain(seed uint64, change ...func(*cm.Options)) *world {
	const troubled = 6 * time.Millisecond
	w := newWorld(seed, sim.Options{Seed: seed}, troubled, 4, 0, change...)
	w.s.KillNodeAfter(1, troubled/2)
	return w
}

func (w *world) end() error {
	defer w.s.Close()
	err := w.s.Run()
	if w.wrong != nil {
		err = w.wrong
	}
	return err
}

// TestGather: copies that are complete at different times make one term when they wait for each
// other, and more when they do not.
func TestGather(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	terms := func(gather time.Duration) (sum int) {
		for seed := range uint64(20) {
			w := plain(seed, func(o *cm.Options) { o.Gather, o.Period = gather, time.Hour })
			if err := w.end(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			sum += w.commits
		}
		return sum
	}
	alone, together := terms(-1), terms(20*time.Millisecond)
	if alone <= together || together > 3*20 { // the first, that without the dead server, that with all copies
		t.Errorf("%d terms, and %d when copies wait for others", alone, together)
	}
}

// TestEnumerate crashes the manager behind each of its verbs, and another server at each verb that
// lands there, until the configuration without the first one is committed.
func TestEnumerate(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	var verbs, landed uint64
	w := plain(1)
	w.s.Go("count", func(ep rdma.Endpoint) {
		ep.Sleep(w.troubled)
		verbs, landed = w.keepers[0].Sent(), w.s.Landed(2)
	})
	if err := w.end(); err != nil {
		t.Fatal(err)
	}
	step := seeds.Step(1, 10)
	t.Logf("%d verbs of the manager, %d at the server", verbs, landed)
	for k := uint64(1); k <= verbs; k += step {
		w := plain(1)
		w.s.CrashAt(w.keepers[0], k)
		if err := w.end(); err != nil {
			t.Fatalf("the manager crashes behind verb %d: %v", k, err)
		}
	}
	for k := uint64(1); k <= landed; k += step {
		w := plain(1)
		w.s.KillNodeAt(2, k)
		if err := w.end(); err != nil {
			t.Fatalf("server 2 dies behind verb %d: %v", k, err)
		}
	}
}

// TestHung: of servers that answer no question of the manager, though their nodes answer READs, one
// is expelled, and the others have their time then; none is without which a shard would be lost.
func TestHung(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for seed := uint64(1); seed <= 6; seed++ {
		w := newWorld(seed, sim.Options{Seed: seed}, 6*time.Millisecond, 4, 0)
		expelled := func() (n int) {
			for node := range w.servers {
				if w.s.Dead(node) {
					n++
				}
			}
			return n
		}
		for _, v := range w.servers[2:] {
			v.deaf = func([]byte) bool {
				return w.s.Now() > 2*time.Millisecond && expelled() == 0 && w.s.Now() < 20*time.Millisecond
			}
		}
		if err := w.end(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if want := min(w.replication-1, 1); expelled() != want {
			t.Errorf("seed %d: of two servers that hang %d were expelled, want %d of a pool with %d replicas", seed,
				expelled(), want, w.replication)
		}
	}
}

// TestEnded: the node of a server that says that it has ended is expelled at once, unless a shard
// would be lost, and the event of the next term says why.
func TestEnded(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for seed := uint64(1); seed <= 6; seed++ {
		w := newWorld(seed, sim.Options{Seed: seed}, 6*time.Millisecond, 4, 0,
			func(o *cm.Options) { o.Hung = time.Hour })
		ended, gone := time.Duration(0), time.Duration(0)
		w.s.Go("watch", func(ep rdma.Endpoint) {
			ep.Sleep(3 * time.Millisecond)
			ended = w.s.Now()
			w.servers[2].cm.End(errors.New("it was told to"))
			for gone == 0 && !w.over {
				ep.Sleep(50 * time.Microsecond)
				if w.s.Dead(2) {
					gone = w.s.Now()
				}
			}
		})
		if err := w.end(); err != nil && w.replication > 1 { // else it is waited for
			t.Fatalf("seed %d: %v", seed, err)
		}
		switch took := gone - ended; {
		case w.replication == 1 && gone > 0:
			t.Errorf("seed %d: the only replica of some shards was expelled", seed)
		case w.replication > 1 && (gone == 0 || took > 10*lease):
			t.Errorf("seed %d: a server that has ended was expelled after %v", seed, took)
		case w.replication > 1 && !strings.Contains(strings.Join(w.events, "\n"), "server 2 ended: it was told to"):
			t.Errorf("seed %d: events are %q", seed, w.events)
		}
	}
}
