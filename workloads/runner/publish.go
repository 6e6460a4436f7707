package runner

import (
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads"
)

// publish begins to tell of a run that could be started.
func (r *run) publish(err error) *client.Publisher {
	if err != nil {
		return nil
	}
	return r.Database.Publish(&subject{run: r, since: make([]since, r.Threads)})
}

// subject is a run of which its pool is told. It measures nothing: what the workers measure anyway
// is passed on. Nothing is told of operations of the warm-up.
type subject struct {
	*run
	now   time.Duration
	since []since // by worker
}

// since is when a worker was last seen to end an operation, and how many it had ended.
type since struct {
	ended uint64
	at    time.Duration
}

// Tick implements client.Subject.
func (s *subject) Tick(now time.Duration, _ bool) {
	s.now = now
	warm := time.Since(s.began) < s.WarmUp // when operations that end are not counted
	for i := range s.since {
		live, was := &s.clock.live[i], &s.since[i]
		counts := live.Load()
		if ended, _ := counts.Ended(); ended != was.ended || live.Rests() || warm || was.at == 0 {
			*was = since{ended, now}
		}
	}
}

// ops are the calls that operations of the store are counted by.
var ops = map[workloads.Op]telemetry.Kind{
	workloads.OpRead: telemetry.Get, workloads.OpUpdate: telemetry.Update, workloads.OpInsert: telemetry.Insert,
	workloads.OpScan: telemetry.Scan,
}

// Tell implements client.Subject.
func (s *subject) Tell(p *telemetry.Process) {
	s.gather()
	p.Workers, p.Oldest = int(s.busy.Load()), 0
	for _, was := range s.since {
		if age := s.now - was.at; age >= client.TickPeriod {
			p.Oldest = max(p.Oldest, age)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p.Add(&s.told)
	s.told.Reset()
	for op, kind := range ops {
		tell(&p.Ops[kind], &s.total.Calls[op])
	}
}

// tell makes o what was measured of a kind of call from the beginning. Calls that failed with an
// answer of the store's are none that failed; their latencies are left out.
func tell(o *telemetry.Ops, m *workloads.Measure) {
	o.Reset()
	o.Trips, o.OK, o.Unknown = m.Trips, m.Answered, m.Unknown
	if m.Failed != nil {
		o.Failed = m.Failed.Count() - m.Answered - m.Unknown
	}
	if m.OK != nil && m.OK.Count() > 0 {
		o.OK += m.OK.Count()
		if o.Latency == nil {
			o.Latency = new(telemetry.Histogram)
		}
		*o.Latency = *m.OK
	}
}
