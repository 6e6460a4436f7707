package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	kv "github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/workloads/check"
)

// onDB is a client.Store on a DB, which replaces a worker that met an answer of unknown outcome.
type onDB struct{ *kv.DB }

func (s onDB) Get(key []byte) ([]byte, error) { return s.DB.Get(context.Background(), key) }
func (s onDB) Insert(key, value []byte) error { return s.DB.Insert(context.Background(), key, value) }
func (s onDB) Update(key, value []byte) error { return s.DB.Update(context.Background(), key, value) }
func (s onDB) Delete(key []byte) error        { return s.DB.Delete(context.Background(), key) }
func historyOf(folder string, w int) string {
	return filepath.Join(folder, fmt.Sprintf("worker-%d.jsonl", w))
}
func keyOf(i int) []byte { return fmt.Appendf(nil, "key-%d", i) }
func appendTo(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// record is a program that works with a pool until it is interrupted, and logs the history of each
// of its workers. It is a candidate for the pool's master, and tells on standard error what it does
// as such. With -look it reads each key once.
func record() {
	pool := flag.String("pool", "", "")
	folder := flag.String("folder", "", "of histories")
	first := flag.Int("first", 0, "number of its first worker in the history")
	workers := flag.Int("workers", 1, "")
	keys := flag.Int("keys", 1, "")
	pause := flag.Duration("pause", 0, "at most, between two operations")
	own := flag.Int("own", 0, "so many workers there are, each of which writes keys of its own")
	look := flag.Bool("look", false, "")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	tell := func(e cluster.Event) { fmt.Fprintf(os.Stderr, "%v %v\n", realtime.Now(), e) }
	db := must(stores.OpenDB(*pool, stores.DBOptions{Name: "record", Workers: *workers, NoKeeper: *look,
		Keeper: cluster.Options{Log: tell}}))
	var all errgroup.Group
	for w := *first; w < *first+*workers; w++ {
		log := must(appendTo(historyOf(*folder, w)))
		r := check.NewRecorder(w, onDB{db}, realtime.Now)
		r.LogTo(log) // unbuffered, so that it outlives the process
		all.Go(func() error {
			if *look {
				return errors.Join(lookAt(r, *keys), log.Close())
			}
			player{Store: r, w: w, keys: *keys, own: *own, pause: *pause}.play(ctx)
			return log.Close()
		})
	}
	must(0, errors.Join(all.Wait(), db.Close()))
}

// player is a worker.
type player struct {
	kv.Store
	w, keys, own int
	pause        time.Duration
}

// play does one thing after the other; what it is answered, errors too, is in the history.
func (p player) play(ctx context.Context) {
	rng := rand.New(rand.NewPCG(uint64(p.w), 1))
	for n := 1; ctx.Err() == nil; n++ {
		key, value := rng.IntN(p.keys), check.MakeValue(nil, p.w, n, 8+rng.IntN(200))
		kind := rng.IntN(20)
		if kind >= 9 && p.own > 0 {
			key = key/p.own*p.own + p.w%p.own
		}
		switch {
		case kind < 9:
			_, _ = p.Get(keyOf(key))
		case kind < 15:
			_ = p.Update(keyOf(key), value)
		case kind < 18:
			_ = p.Insert(keyOf(key), value)
		default:
			_ = p.Delete(keyOf(key))
		}
		if p.pause > 0 {
			time.Sleep(time.Duration(rng.Int64N(int64(p.pause))))
		}
	}
}

func lookAt(s kv.Store, keys int) error {
	for i := range keys {
		if _, err := s.Get(keyOf(i)); err != nil && !errors.Is(err, kv.ErrNotFound) {
			return fmt.Errorf("get %s: %w", keyOf(i), err)
		}
	}
	return nil
}
