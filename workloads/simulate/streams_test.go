package simulate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// streamed is a small run.
func streamed(way string, senders, local int) Streams {
	return Streams{
		Way: way, Profile: "rowan-testbed", Machines: 4, Senders: senders, Bytes: 64, Local: local, LocalBytes: 128,
		Duration: 150 * time.Microsecond, WarmUp: 100 * time.Microsecond, Seed: 1,
	}
}

// TestStreams: what more streams than the XPBuffer has lines write is amplified, and slow; what is
// appended to one log is neither. Each way counts what it wrote.
func TestStreams(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for _, x := range []struct {
		Streams
		least, most float64 // DLWA
		rate        float64 // million writes a second, at least
	}{
		{streamed(Exclusive, 72, 0), 0.95, 1.05, 30}, {streamed(Exclusive, 144, 0), 2, 4, 15},
		{streamed(Append, 144, 0), 0.95, 1.03, 50}, {streamed(Append, 36, 18), 0.95, 1.06, 10},
		{streamed(Strawman, 36, 0), 0.95, 1.03, 5}, {streamed(Exclusive, 0, 4), 0.95, 1.05, 0},
	} {
		w, err := x.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if w.DLWA < x.least || w.DLWA > x.most || w.Writes < x.rate*1e6 || (w.Local > 0) != (x.Local > 0) {
			t.Errorf("%+v: %+v", x.Streams, w)
		}
		if asked := w.Writes*float64(x.Bytes) + w.Local; w.Requests < 0.95*asked || w.Requests > 1.05*asked {
			t.Errorf("%+v: the modules took %.3g B/s of %.3g", x.Streams, w.Requests, asked)
		}
	}
}

func TestSameSeedSameStreams(t *testing.T) {
	s := streamed(Exclusive, 16, 2)
	one, err := s.Run(t.Context())
	other, err2 := s.Run(t.Context())
	if err != nil || err2 != nil || *one != *other {
		t.Errorf("%+v, %v and %+v, %v", one, err, other, err2)
	}
}

// TestStreamsEnd: whenever the time is over, what is in flight then ends well.
func TestStreamsEnd(t *testing.T) {
	for i := range lookEvery / time.Microsecond {
		s := streamed(Append, 8, 0)
		s.WarmUp, s.Duration = 0, lookEvery+i*time.Microsecond
		if _, err := s.Run(t.Context()); err != nil {
			t.Fatalf("after %v: %v", s.Duration, err)
		}
	}
}

func TestStreamsMisuse(t *testing.T) {
	for name, wrong := range map[string]func(*Streams){
		"no such hardware":  func(s *Streams) { s.Profile = "nosuch" },
		"no modules":        func(s *Streams) { s.Profile = "fusee-testbed" },
		"no such way":       func(s *Streams) { s.Way = "read" },
		"no streams":        func(s *Streams) { s.Senders = 0 },
		"too many":          func(s *Streams) { s.Local = mostStreams },
		"no bytes":          func(s *Streams) { s.Bytes = 0 },
		"no time":           func(s *Streams) { s.Duration = 0 },
		"no figure":         func(s *Streams) { s.Hardware = []string{"PMem.Nosuch=1"} },
		"a figure's figure": func(s *Streams) { s.Hardware = []string{"PMem.Combining=many"} },
		"no module left":    func(s *Streams) { s.Hardware = []string{"PMem.DIMMs=0"} },
	} {
		s := streamed(Exclusive, 4, 0)
		wrong(&s)
		if w, err := s.Run(t.Context()); w != nil || !errors.As(err, new(*workloads.UsageError)) {
			t.Errorf("%s: %+v, %v", name, w, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if w, err := streamed(Append, 4, 2).Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", w, err)
	}
}
