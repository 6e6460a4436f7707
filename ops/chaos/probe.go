package chaos

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops"
)

const (
	probeWorkers = 2
	probeKeys    = 8 // a worker
	probeEvery   = 5 * time.Millisecond
	probeCache   = 64 << 10         // bytes of a worker's cache of so few keys
	probeEnd     = 10 * time.Second // for its pairs to be removed
	// probePrefix is what its keys begin with; behind it come 8 random characters, so that two
	// probes do not meet.
	probePrefix = "~crash-"
)

// probe is a small load on a pool, by which breaks are measured: each worker reads and updates
// pairs of its own, one each few milliseconds. It is no candidate for the pool's master.
type probe struct {
	db    *client.DB
	name  string
	end   context.CancelFunc
	group sync.WaitGroup

	mu      sync.Mutex
	figures Probed
	last    [probeWorkers]time.Time // answered
}

// Probed is what a probe met with.
type Probed struct {
	Operations int           `json:"operations"`
	Failed     int           `json:"failed"`        // without an answer, or with a wrong one
	Gap        time.Duration `json:"-"`             // the longest of a worker between two answers
	LostPairs  int           `json:"lost_pairs"`    // that it had written, and did not find
	Why        string        `json:"why,omitempty"` // an operation failed, the first
}

// startProbe writes the probe's pairs, and begins.
func startProbe(addr string) (*probe, error) {
	pool, err := stores.Open(addr)
	if err != nil {
		return nil, ops.Explain(fmt.Errorf("crash: begin the probe load: %w", err), addr)
	}
	own := pool.Kind.Choose(stores.Values{stores.CacheBytes: probeCache}, stores.Opened)
	db, err := pool.DB(stores.DBOptions{Name: "crash probe", Workers: probeWorkers, NoKeeper: true,
		Options: stores.Options{Own: own}})
	if err != nil {
		return nil, ops.Explain(fmt.Errorf("crash: begin the probe load: %w", err), addr)
	}
	ctx, end := context.WithCancel(context.Background())
	p := &probe{db: db, name: probePrefix + rand.Text()[:8], end: end}
	for w := range probeWorkers {
		for k := range probeKeys {
			if err := db.Put(ctx, p.key(w, k), []byte("0")); err != nil {
				err = ops.Explain(fmt.Errorf("crash: write the probe's pairs: %w", err), addr)
				return nil, errors.Join(err, p.stop())
			}
		}
		p.last[w] = time.Now()
	}
	for w := range probeWorkers {
		p.group.Go(func() { p.work(ctx, w) })
	}
	return p, nil
}

func (p *probe) key(worker, n int) []byte { return fmt.Appendf(nil, "%s%x%x", p.name, worker, n) }

func (p *probe) work(ctx context.Context, w int) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	var wrote [probeKeys]string // "": not known
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		k, wrong := i/2%probeKeys, error(nil)
		var err error
		if i%2 == 0 {
			value := fmt.Sprint(i)
			wrote[k] = ""
			if err = p.db.Update(context.Background(), p.key(w, k), []byte(value)); err == nil {
				wrote[k] = value
			}
		} else {
			var value []byte
			value, err = p.db.Get(context.Background(), p.key(w, k))
			if err == nil && wrote[k] != "" && wrote[k] != string(value) {
				wrong = fmt.Errorf("get %s: %q, and %q was written", p.key(w, k), value, wrote[k])
			}
		}
		p.count(w, err, wrong)
	}
}

// count counts one operation.
func (p *probe) count(w int, err, wrong error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := &p.figures
	f.Operations++
	if errors.Is(err, client.ErrNotFound) && !errors.Is(err, client.ErrUncertain) {
		f.LostPairs++
	}
	if err = errors.Join(err, wrong); err != nil {
		if f.Failed++; f.Why == "" {
			f.Why = err.Error()
		}
		return
	}
	now := time.Now()
	f.Gap = max(f.Gap, now.Sub(p.last[w]))
	p.last[w] = now
}

// begin forgets what was counted.
func (p *probe) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.figures = Probed{}
}

// so returns what was counted since begin; a worker that waits for an answer has a gap up to now.
func (p *probe) so() Probed {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.figures
	for _, last := range p.last {
		f.Gap = max(f.Gap, time.Since(last))
	}
	return f
}

// answered reports whether all workers were behind a moment.
func (p *probe) answered(since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !slices.ContainsFunc(p.last[:], func(last time.Time) bool { return last.Before(since) })
}

// stop ends the load and removes its pairs.
func (p *probe) stop() error {
	p.end()
	p.group.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), probeEnd)
	defer cancel()
	var failed error
	for w := range probeWorkers {
		for k := range probeKeys {
			err := p.db.Delete(ctx, p.key(w, k))
			for ; err != nil && !errors.Is(err, client.ErrNotFound) &&
				ctx.Err() == nil; err = p.db.Delete(ctx, p.key(w, k)) {
				time.Sleep(probeEvery)
			}
			if err != nil && !errors.Is(err, client.ErrNotFound) && failed == nil {
				failed = fmt.Errorf("remove the probe's pairs, %s...: %w", p.name, err)
			}
		}
	}
	return errors.Join(failed, p.db.Close())
}
