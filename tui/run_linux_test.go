package tui

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/tuitest"
)

// ticking is a source of samples of which each is new after a tenth of a second, the processes'
// records in it after a second. It has some of the past at first.
type ticking struct {
	samples []*telemetry.Sample
	past    int
	at      int
	began   time.Time
}

func (s *ticking) Next(ctx context.Context) (*telemetry.Sample, error) {
	now := time.Now()
	if s.at == 0 {
		s.began = now
	}
	i := s.at
	if ahead := s.at - s.past; ahead < 0 {
		now = s.began.Add(time.Duration(ahead) * time.Second)
	} else {
		i = s.past + ahead/10
		select {
		case <-time.After(time.Until(s.began.Add(time.Duration(ahead) * drawEvery))):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		now = time.Now()
	}
	s.at++
	sample := *s.samples[min(i, len(s.samples)-1)]
	sample.At = now
	return &sample, nil
}

func (s *ticking) Close() error { return nil }

// BenchmarkProgram shows what the program costs, on a terminal of 160 by 48, with 64 processes and
// 500 clients behind it and ten samples a second: the share of a processor, and what the terminal
// gets, page by page.
func BenchmarkProgram(b *testing.B) {
	const seconds, past = 10, 300
	samples := tuitest.NewPool(1, 64, 500).Samples(past + seconds + 5)
	for page, name := range []string{"overview", "latency", "nodes", "clients", "store", "events"} {
		b.Run(name, func(b *testing.B) {
			emulator, program := tuitest.Pseudo(b, 160, 48)
			defer program.Close()
			var bytes atomic.Int64
			go func() {
				p := make([]byte, 1<<16)
				for n, err := emulator.Read(p); err == nil; n, err = emulator.Read(p) {
					bytes.Add(int64(n))
				}
			}()
			ctx, cancel := context.WithCancel(b.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- Run(ctx, Options{In: program, Out: program, Page: page, Pools: []Pool{{Name: "mine"}},
					Open: func(context.Context, string) (*Session, error) {
						return &Session{Source: &ticking{samples: samples, past: past}}, nil
					}})
			}()
			for bytes.Load() == 0 {
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(5 * time.Second) // for the past
			for b.Loop() {
				cpu, got := realtime.CPU(), bytes.Load()
				time.Sleep(seconds * time.Second)
				b.ReportMetric(100*float64(realtime.CPU()-cpu)/float64(seconds*time.Second), "%-CPU")
				b.ReportMetric(float64(bytes.Load()-got)/1e3/seconds, "KB/s")
			}
			cancel()
			<-ended
			b.ReportMetric(0, "ns/op")
		})
	}
}
