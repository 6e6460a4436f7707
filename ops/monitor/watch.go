package monitor

import (
	"context"
	"errors"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads/recording"
)

// Watch takes samples of a pool at an interval, and writes them into a recording if there is one:
// it is a tui.Source. It is not safe for concurrent use.
type Watch struct {
	sampler *Sampler
	every   time.Duration
	next    time.Time
	record  *recording.File // nil: nothing is recorded
}

// NewWatch returns a Watch of a pool, by its address or a name that Resolve knows. record is the
// file of a recording; "": there is none. A pool that cannot be opened now can be watched. A pool
// that does not exist is an error.
func NewWatch(addr string, every time.Duration, record string) (*Watch, error) {
	addr, err := ops.Resolve(addr)
	if err != nil {
		return nil, err
	}
	w := &Watch{sampler: NewSampler(addr), every: every}
	if err := w.sampler.open(); errors.Is(err, fabrics.ErrNoPool) {
		return nil, err
	}
	if record != "" {
		file, err := recording.Create(record, "farkv monitor")
		if err != nil {
			return nil, errors.Join(err, w.sampler.Close())
		}
		w.record = file
	}
	return w, nil
}

// WatchOpen returns a Watch of an open pool, which the caller closes after the Watch.
func WatchOpen(p *stores.Pool, every time.Duration) *Watch {
	return &Watch{sampler: NewSamplerOf(p), every: every}
}

// Next waits until it is time for the next sample. It returns errors of the recording, and of ctx.
func (w *Watch) Next(ctx context.Context) (*telemetry.Sample, error) {
	if err := ops.SleepUntil(ctx, w.next); err != nil {
		return nil, err
	}
	now := time.Now()
	w.next = now.Add(w.every)
	s := w.sampler.Look(now)
	if w.record != nil {
		if err := w.record.Add(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Close ends the recording, and closes the Sampler.
func (w *Watch) Close() error {
	err := w.sampler.Close()
	if w.record != nil {
		err = errors.Join(err, w.record.Close())
	}
	return err
}
