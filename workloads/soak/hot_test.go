package soak

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/check"
)

// hotStores are stores in which writers of one key take its lock, or make each other try again.
var hotStores = []string{"race-rtx", "race", "sherman-rtx", "sherman"}

// TestHot: of 64 workers that all write one key none fails, as nothing is dead.
func TestHot(t *testing.T) {
	length := time.Second / 2
	if os.Getenv("FARKV_LONG") == "1" {
		length = 30 * time.Second
	}
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	for _, store := range hotStores {
		for _, addr := range []string{"mem:", "shm:hot-" + store} {
			t.Run(store+" on "+addr[:4], func(t *testing.T) {
				p, err := stores.Create(addr, store, stores.Params{Nodes: 1, Records: 10000})
				if err != nil {
					t.Fatal(err)
				}
				gets, updates, err := hot(p, 64, length)
				if err != nil {
					t.Error(err)
				}
				t.Logf("GET %v; UPDATE %v", gets, updates)
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// hot has workers of this process read and update one key of a pool for a while, each as fast as it
// can: how fair the store is to writers that are in each other's way. One operation of eight is a
// GET. An operation that fails is an error, as nothing is dead.
func hot(p *stores.Pool, workers int, length time.Duration) (gets, updates Latency, err error) {
	key, value := []byte("hot"), check.MakeValue(nil, 0, 1, 100)
	s, ep, err := p.Worker("hot", stores.Options{})
	if err != nil {
		return gets, updates, err
	}
	if err := errors.Join(s.Insert(key, value), s.Close(), ep.Close()); err != nil {
		return gets, updates, fmt.Errorf("insert: %w", err)
	}
	all := make([]hotWorker, workers)
	var group sync.WaitGroup
	until := time.Now().Add(length)
	for i := range all {
		group.Go(func() { all[i].err = all[i].work(p, i, until) })
	}
	group.Wait()
	var get, update workloads.Histogram
	for i := range all {
		err = errors.Join(err, all[i].err)
		get.Merge(&all[i].gets)
		update.Merge(&all[i].updates)
	}
	return latency(&get), latency(&update), err
}

// hotWorker is one of them.
type hotWorker struct {
	gets, updates workloads.Histogram
	err           error
}

func (w *hotWorker) work(p *stores.Pool, number int, until time.Time) (err error) {
	s, ep, err := p.Worker(fmt.Sprint("hot-", number), stores.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close(), ep.Close()) }()
	key := []byte("hot")
	var value []byte
	for n := 1; time.Now().Before(until); n++ {
		began := time.Now()
		if n%8 == 0 {
			got, err := s.Get(key)
			if err == nil && check.Identify(got)>>63 != 0 {
				err = fmt.Errorf("a value that was never written: %w", client.ErrDamaged)
			}
			if err != nil {
				return fmt.Errorf("get %d of worker %d: %w", n, number, err)
			}
			w.gets.Record(time.Since(began))
			continue
		}
		value = check.MakeValue(value[:0], number, n%(1<<24-1)+1, 100)
		if err := s.Update(key, value); err != nil {
			return fmt.Errorf("update %d of worker %d: %w", n, number, err)
		}
		w.updates.Record(time.Since(began))
	}
	return nil
}
