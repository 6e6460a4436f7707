package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/cluster/consul"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/metrics"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/drivers"
)

// KeepConfig is the configuration of a candidate for a pool's master.
type KeepConfig struct {
	Metrics       string // address; "": none
	MetricsPublic bool
	Log           *slog.Logger
}

// Keeping is a process that is a candidate for a pool's master and nothing else.
type Keeping struct {
	Pool    string `json:"pool"`
	Store   string `json:"store"`
	Metrics string `json:"metrics,omitempty"`
}

// Keep makes this process a candidate for a pool's master until ctx ends. It calls ready once, as
// soon as the process is one. The error wraps fabrics.ErrNoPool when the pool was removed
// meanwhile: Keep does not go over to a new pool at the same address.
func Keep(ctx context.Context, addr string, c KeepConfig, ready func(*Keeping) error) (err error) {
	if fabrics.Private(addr) {
		return workloads.Usagef("keep %s: only the process that makes a mem: pool sees it", addr)
	}
	p, err := stores.Open(addr)
	if err != nil {
		return ops.Explain(err, addr)
	}
	defer func() {
		if closed := p.Close(); !errors.Is(err, fabrics.ErrNoPool) { // which has nothing that could be given back
			err = errors.Join(err, closed)
		}
	}()
	if p.Kind.Recoverer == nil {
		return workloads.Usagef("keep %s: this version recovers no %s pools", p.Address, p.Kind.Name)
	}
	ep, err := p.Fabric.Open(stores.KeeperName) // Pool.Keep takes a pool that is full for one that others keep
	if err != nil {
		return ops.Explain(fmt.Errorf("keep %s: %w", p.Address, err), addr)
	}
	if err := ep.Close(); err != nil {
		return fmt.Errorf("keep %s: %w", p.Address, err)
	}
	consul.BeImpatient() // a master's calls have to end before its lease does
	kept := new(drivers.Kept)
	k := &Keeping{Pool: p.Address, Store: p.Kind.Name}
	if c.Metrics != "" {
		m, wrong := metrics.Serve(c.Metrics, c.MetricsPublic, func() error { return nil },
			metrics.OfPool(p.Fabric, kept))
		if wrong != nil {
			return metrics.Misuse(wrong, "--metrics-public")
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		k.Metrics = m.URL()
	}
	write, failed := eventLog(c.Log), make(chan struct{}, 1)
	err = p.Keep(cluster.Options{Log: func(e cluster.Event) {
		kept.Note(e)
		write(e)
		if e.What == cluster.Failed {
			select {
			case failed <- struct{}{}:
			default:
			}
		}
	}})
	if err != nil {
		return ops.Explain(err, addr)
	}
	if err := ready(k); err != nil {
		return err
	}
	if !removed(ctx, addr, failed) {
		return nil
	}
	return fmt.Errorf("keep %s: it was removed: %w", p.Address, fabrics.ErrNoPool)
}

// lookEvery is how often a candidate that fails checks whether its pool still exists.
const lookEvery = 2 * time.Second

// removed waits until ctx ends or the pool is gone, and reports whether it is gone. It looks only
// after a failure: without a pool all that a candidate does fails.
func removed(ctx context.Context, addr string, failed <-chan struct{}) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-failed:
		}
		again, err := stores.Open(addr)
		if err == nil {
			err = again.Close()
		}
		if errors.Is(err, fabrics.ErrNoPool) {
			return true
		}
		if ops.SleepUntil(ctx, time.Now().Add(lookEvery)) != nil {
			return false
		}
	}
}

// failureEvery is how often failures in a row are logged: while a pool cannot be reached there are
// two a second.
const failureEvery = time.Minute

// eventLog returns a function that logs the events of one candidate.
func eventLog(l *slog.Logger) func(cluster.Event) {
	failing, at, more := false, time.Duration(0), 0 // the failure that was written last, and those behind it
	return func(e cluster.Event) {
		switch {
		case e.What != cluster.Failed:
			failing, more = false, 0
			l.Info(e.String(), "event", e.What.String())
		case failing && e.At-at < failureEvery:
			more++
		default:
			l.Warn(e.String(), "event", e.What.String(), "unwritten", more)
			failing, at, more = true, e.At, 0
		}
	}
}

// Print implements Result.
func (k *Keeping) Print(w io.Writer) {
	fmt.Fprintf(w, "keeps %s: a candidate for its master", k.Pool)
	if k.Metrics != "" {
		fmt.Fprintf(w, "; metrics at %s", k.Metrics)
	}
	fmt.Fprintln(w)
}
