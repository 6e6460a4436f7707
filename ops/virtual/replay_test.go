package virtual

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads/recording"
)

// TestReplay plays a recording of ten samples, a minute apart, on a clock of its own.
func TestReplay(t *testing.T) {
	name := filepath.Join(t.TempDir(), "run.fkr")
	file, err := recording.Create(name, "test")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Unix(1e9, 0).UTC()
	for i := range 10 {
		if err := file.Add(&telemetry.Sample{At: began.Add(time.Duration(i) * time.Minute),
			Epoch: uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := OpenReplay(name)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if from, to := r.Span(); !from.Equal(began) || to.Sub(from) != 9*time.Minute || r.Problem() != "" {
		t.Errorf("from %v to %v, %q", from, to, r.Problem())
	}
	now := time.Now()
	r.set, r.now = now, func() time.Time { return now }
	next := func(want uint64) {
		t.Helper()
		s, err := r.Next(t.Context())
		if err != nil || s.Epoch != want {
			t.Fatalf("%+v, %v, want sample %d", s, err, want)
		}
	}
	waits := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if s, err := r.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%+v, %v before its time", s, err)
		}
	}
	next(0)
	waits()
	now = now.Add(2 * time.Minute)
	next(1)
	next(2)
	waits()
	r.SetSpeed(60)
	now = now.Add(time.Second)
	next(3)
	r.SetSpeed(0)
	now = now.Add(time.Hour)
	waits()
	if err := r.Seek(began.Add(90 * time.Second)); err != nil { // the history first
		t.Fatal(err)
	}
	next(0)
	next(1)
	waits()
	r.SetSpeed(6e9) // ten minutes in 100 ns
	now = now.Add(time.Microsecond)
	for i := range uint64(8) {
		next(i + 2)
	}
	if s, err := r.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("%+v, %v behind the end", s, err)
	}
}
