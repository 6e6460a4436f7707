package measure

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads/check/teeth"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
)

// loadPool makes a store's pool and loads it.
func (b *Bench) loadPool(t testing.TB, name string) (*stores.Pool, runner.Config) {
	t.Helper()
	kind, err := stores.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	c, _, err := b.configure()
	if err != nil {
		t.Fatal(err)
	}
	p, remove, err := b.pool(kind, c.Spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), remove()); err != nil {
			t.Error(err)
		}
	})
	c.Name, c.Load, c.Database = name, true, drivers.Embed(kind, p.Fabric, stores.Options{}, c.Spec)
	r, err := runner.Run(context.Background(), c)
	if err != nil || r.Failed > 0 {
		t.Fatalf("%s: load: %v, %+v", name, err, r)
	}
	return p, c
}

// TestBytesInUse holds the memory that a pool of a known number of pairs takes against what its
// layout implies: how many copies of a pair there are, at least and at most, and what lies around
// them, with a tenth for what was handed out and is not full yet.
func TestBytesInUse(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("it counts bytes, behind loads as TestBench has them; run without -race")
	}
	const value = 1000
	workload := filepath.Join(t.TempDir(), "known.properties")
	if err := os.WriteFile(workload, []byte("fieldcount=1\nfieldlength=1000\nreadproportion=1\nupdateproportion=0\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		store       string
		least, most int // copies
		around      int // bytes of each record, in all
	}{
		// header, log entry, up to whole units; slots of an index half full
		{"fusee", 2, 2, 2*(24+22+64) + 2*8*2},
		{"raw", 1, 1, 4*64 + 200}, // object; bucket and buffers of the directory
		// a word, headers of buffers; a directory with 3 replicas
		{"dm-abd", 2, 3, 3*(8+3*8) + 3*200},
		{"swarm-apart", 2, 3, 3*(24*8+3*8) + 3*200},               // 8 words and 16 locks
		{"swarm", 3, 4, 3*(24*8+3*8) + 3*200},                     // and one in place
		{"rcuckoo", 1, 1, 40 + 1024/8 + 2*8 + 1023 - value + 100}, // an entry; the slab's bits; a header
	} {
		t.Run(c.store, func(t *testing.T) {
			b := small()
			b.Workload, b.Records, b.Replicas = workload, 20_000, 0
			p, cfg := b.loadPool(t, c.store)
			uses, err := p.Kind.Usage(p.Fabric)
			if err != nil {
				t.Fatal(err)
			}
			user := 0
			for n := range cfg.Spec.InsertCount {
				user += len(cfg.Spec.Key(n)) + value
			}
			used := float64(bytesInUse(uses))
			least, most := float64(c.least*user), 1.1*float64(c.most*user+c.around*int(b.Records))
			if used < least || used > most {
				t.Errorf("%.0f bytes are in use for %d of the user's, which are %.2f a byte, and not %.2f to %.2f: %+v",
					used, user, used/float64(user), least/float64(user), most/float64(user), uses)
			}
		})
	}
}
