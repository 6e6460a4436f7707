package stores

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/workloads/check/killed"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(tellEnv) != "" || killed.Child() { // a child: its pools are the parent's
		os.Exit(m.Run())
	}
	folder, err := os.MkdirTemp("", "farkv-stores")
	if err == nil {
		err = os.Setenv("FARKV_SHM_DIR", folder)
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(folder); err != nil {
			panic(err)
		}
		os.Exit(code)
	}))
}

const (
	churnLive    = 1000 // keys
	churnRecords = 2000
)

// TestChurn inserts ever-new keys in real time and deletes old ones, so that the same number is
// live: no operation fails, however many the pool has held by then, and no key is lost. On shm:
// eed9e50 fails behind 2 to 8 s, on mem: behind one.
func TestChurn(t *testing.T) {
	for _, c := range []struct {
		store, fabric string
		lasts         time.Duration
		long          bool
	}{
		{"swarm", "mem:", 2 * time.Second, false}, {"raw", "mem:", 2 * time.Second, false},
		{"swarm", "shm:churn-swarm", 8 * time.Second, true}, {"dm-abd", "shm:churn-dm-abd", 8 * time.Second, true},
	} {
		t.Run(c.store+" on "+c.fabric[:4], func(t *testing.T) {
			if c.long && os.Getenv("FARKV_LONG") != "1" {
				t.Skip("takes its time: FARKV_LONG=1 runs it, as .ci/run does")
			}
			t.Parallel()
			churn(t, c.fabric, c.store, c.lasts)
		})
	}
}

func churn(t *testing.T, addr, store string, lasts time.Duration) {
	p := churnPool(t, addr, store)
	s, ep, err := p.Worker("churn", Options{})
	must(t, err)
	must(t, p.Keep(cluster.Options{}))
	rng := rand.New(rand.NewPCG(1, 2))
	live, inserts := map[string]string{}, 0
	keys := make([]string, 0, churnLive)
	for end := time.Now().Add(lasts); time.Now().Before(end) || inserts < 10*churnRecords; inserts++ {
		if len(keys) == churnLive {
			i := rng.IntN(churnLive)
			must(t, s.Delete([]byte(keys[i])))
			delete(live, keys[i])
			keys[i] = keys[churnLive-1]
			keys = keys[:churnLive-1]
		}
		key, value := fmt.Sprint("key-", inserts), strings.Repeat(fmt.Sprint(inserts), 1+rng.IntN(16))
		if err := s.Insert([]byte(key), []byte(value)); err != nil {
			t.Fatalf("behind %d inserts, with %d keys live of %d: %v", inserts, len(keys), churnRecords, err)
		}
		live[key], keys = value, append(keys, key)
	}
	for key, want := range live {
		if v, err := s.Get([]byte(key)); err != nil || string(v) != want {
			t.Fatalf("get %s: got %q, %v; want %q", key, v, err, want)
		}
	}
	must(t, s.Close())
	must(t, ep.Close())
	checkBetweenSweeps(t, p)
	t.Logf("%d inserts", inserts)
}

// checkBetweenSweeps checks a pool that no client uses, at a time in which its master does not
// sweep it, either.
func checkBetweenSweeps(t *testing.T, p *Pool) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		before := p.Fabric.View()
		r, err := p.Kind.Check(p.Fabric)
		if after := p.Fabric.View(); before.Busy || after.Epoch != before.Epoch {
			continue
		}
		must(t, err)
		for _, damage := range r.Damage {
			t.Error(damage)
		}
		return
	}
	t.Error("the pool is swept for ever")
}

// churnPool makes a pool that goes with the test.
func churnPool(t *testing.T, addr, store string) *Pool {
	// An operation waits for a sweep until its timeout is over, and a sweep of a master that hardly
	// runs takes seconds.
	p, err := Create(addr, store, Params{Records: churnRecords, Timeout: 20 * time.Second})
	must(t, err)
	t.Cleanup(func() { must(t, p.Close()) })
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
