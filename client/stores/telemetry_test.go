package stores

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads/check/wait"
)

// processes returns a function that looks at what the processes of a pool tell.
func processes(t *testing.T, f rdma.Fabric) func() []telemetry.Process {
	t.Helper()
	ep, err := rdma.Peek(f, "look")
	must(t, err)
	t.Cleanup(func() { _ = ep.Close() })
	r, err := telemetry.Find(ep, f.Nodes())
	must(t, err)
	reader := telemetry.NewReader(r)
	return func() []telemetry.Process {
		all, _, err := reader.Processes(ep, time.Now())
		must(t, err)
		return all
	}
}

// told is how many operations of each kind ended in a DB, and how.
type told struct {
	ok, failed [telemetry.Kinds]atomic.Uint64
}

func (c *told) note(k telemetry.Kind, err error) {
	if client.Answers(err) {
		c.ok[k].Add(1)
	} else {
		c.failed[k].Add(1)
	}
}

// agrees returns where a record differs from what was done; "": nowhere.
func (c *told) agrees(p *telemetry.Process) string {
	for k := range telemetry.Kinds {
		if o, want := &p.Ops[k], c.ok[k].Load(); o.OK != want || o.Failed != c.failed[k].Load() || o.Unknown != 0 {
			return fmt.Sprintf("%s: %d, failed %d, unknown %d; want %d and %d", k, o.OK, o.Failed, o.Unknown, want,
				c.failed[k].Load())
		}
	}
	return ""
}

// What a DB under load tells agrees, once it is idle, with what was done, and is gone when the DB
// is closed. While it is under load, what it tells never is more.
func TestDBTells(t *testing.T) {
	t.Parallel()
	pool, err := Create("shm:tells", "fusee", Params{Records: 10_000})
	must(t, err)
	watch, err := Open("shm:tells")
	must(t, err)
	defer watch.Close()
	db, err := pool.DB(DBOptions{Name: "loaded", Workers: 4})
	must(t, err)
	look := processes(t, watch.Fabric)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	var c told
	var all sync.WaitGroup
	for g := range 6 {
		all.Go(func() {
			value := make([]byte, 100)
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Appendf(nil, "%d %d", g, i)
				c.note(telemetry.Update, db.Update(t.Context(), key, value)) // not found
				c.note(telemetry.Insert, db.Insert(t.Context(), key, value))
				c.note(telemetry.Update, db.Update(t.Context(), key, value))
				_, err := db.Get(t.Context(), key)
				c.note(telemetry.Get, err)
				_, err = db.Get(t.Context(), key[:1])
				c.note(telemetry.Get, err) // not found
				c.note(telemetry.Delete, db.Delete(t.Context(), key))
				if i%100 == 0 {
					c.note(telemetry.Insert, db.Insert(t.Context(), key, make([]byte, 1<<20))) // too large
				}
			}
		})
	}
	for ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
		for _, p := range look() {
			if got, most := p.Ops[telemetry.Get].OK, c.ok[telemetry.Get].Load()+6; got > most {
				t.Errorf("told of %d GETs, when %d were done at most", got, most)
			}
		}
	}
	all.Wait()
	differs := ""
	wait.Until(t, "the record agrees", func() bool {
		told := look()
		if len(told) != 1 {
			return false
		}
		differs = c.agrees(&told[0])
		return differs == ""
	})
	if t.Failed() {
		t.Fatal(differs)
	}
	checkTold(t, &look()[0])
	if n := len(watch.Fabric.Clients()); n > 5 {
		t.Errorf("%d clients for 4 workers and a keeper", n)
	}
	must(t, db.Close())
	if left := look(); len(left) > 0 {
		t.Errorf("told behind the end: %+v", left)
	}
}

// checkTold checks what has to be in the record of a process that did everything.
func checkTold(t *testing.T, p *telemetry.Process) {
	t.Helper()
	if p.PID != os.Getpid() || p.Name != "loaded" || p.Workers < 1 || p.Workers > 4 || p.Oldest != 0 || p.Calls == 0 {
		t.Errorf("%+v", p)
	}
	for k, o := range p.Ops {
		if k := telemetry.Kind(k); k != telemetry.Scan && (o.Latency == nil || o.Latency.Count() > o.OK ||
			o.Latency.Count() < o.OK/2 && o.OK > 1000) {
			t.Errorf("%s: latencies of %+v", k, o)
		}
	}
	if trips := p.Ops[telemetry.Get].Trips; trips == 0 || trips > 4*p.Ops[telemetry.Get].OK {
		t.Errorf("%d trips", trips)
	}
	for _, n := range p.Nodes {
		if n.Reads == 0 || n.Writes == 0 || n.Atomics == 0 || n.Doorbells == 0 || n.BytesWrote == 0 {
			t.Errorf("node %d: %+v", n.Node, n)
		}
	}
	if len(p.Nodes) != 3 || len(p.Own) == 0 || p.Own[0].Name != "won by rule 1" || p.Own[0].Count == 0 {
		t.Errorf("by node %+v, of its own %+v", p.Nodes, p.Own)
	}
}

const tellEnv = "FARKV_TELL"

// TestTellsUntilKilled is the process that TestKilledRecordAges kills.
func TestTellsUntilKilled(t *testing.T) {
	addr := os.Getenv(tellEnv)
	if addr == "" {
		t.Skip("a test's child")
	}
	db, err := OpenDB(addr, DBOptions{Name: "doomed", Workers: 2})
	must(t, err)
	for {
		_, err := db.Get(t.Context(), []byte("key"))
		if !errors.Is(err, client.ErrNotFound) {
			t.Fatal(err)
		}
	}
}

// A process that is killed leaves its record behind, which ages, and then no look shows it.
func TestKilledRecordAges(t *testing.T) {
	t.Parallel()
	pool, err := Create("shm:killed", "fusee", Params{Records: 1000})
	must(t, err)
	defer pool.Close()
	look := processes(t, pool.Fabric)
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTellsUntilKilled$")
	child.Env = append(os.Environ(), tellEnv+"=shm:killed")
	must(t, child.Start())
	var last telemetry.Process
	wait.Until(t, "the child tells", func() bool {
		told := look()
		if len(told) == 1 {
			last = told[0]
		}
		return last.Ops[telemetry.Get].OK > 0
	})
	must(t, child.Process.Kill())
	_ = child.Wait()
	killed := time.Now()
	if last.PID != child.Process.Pid || last.Name != "doomed" {
		t.Errorf("told by %+v", last)
	}
	time.Sleep(1500 * time.Millisecond)
	told := look()
	if len(told) != 1 || told[0].Life != last.Life || told[0].At.After(killed) {
		t.Fatalf("behind its death the record says %+v", told)
	}
	wait.Until(t, "the record is left out", func() bool { return len(look()) == 0 })
}
