package client

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Subject is what a Publisher tells of. Its methods are called by one goroutine.
type Subject interface {
	// Tick says what time it is, each TickPeriod: by it the age of operations is told. The last one
	// before Tell says so, so that workers have time to hand over what they counted.
	Tick(now time.Duration, last bool)
	// Tell brings p, which has what the last call left there, up to date: operations, verbs, counters,
	// workers.
	Tell(p *telemetry.Process)
}

// A Publisher tells a pool once a second what a process does in it: see package telemetry. What
// fails it tries again a second later, on an endpoint of its own; operations notice nothing of it.
// A nil Publisher tells nothing.
type Publisher struct {
	fabric  rdma.Fabric
	subject Subject
	process telemetry.Process
	ep      rdma.Endpoint     // nil: there is none now
	writer  *telemetry.Writer // nil: the pool's telemetry was not found yet
	stop    chan struct{}     // closed by Close
	ended   chan struct{}
}

// TickPeriod is how often a Subject is told the time: ages of operations are as exact.
// Each wakes the process, which costs one that is idle 150 µs.
const TickPeriod = 250 * time.Millisecond

const ticks = 4 // from one record to the next

// Publish begins to tell f's pool what a process does, under a name that is for people. It returns
// nil when the pool has no place for that, because an older program made it, or because this
// process may only read.
func Publish(f rdma.Fabric, name string, s Subject) *Publisher {
	p := newPublisher(f, name, s)
	if p != nil {
		go p.run()
	}
	return p
}

func newPublisher(f rdma.Fabric, name string, s Subject) *Publisher {
	if f == nil {
		return nil
	}
	g, ok := f.(rdma.Geometer)
	if r, is := f.(rdma.AccessReporter); !ok || g.Geometry().Telemetry == 0 || is && r.ReadOnly() {
		return nil
	}
	p := &Publisher{fabric: f, subject: s, stop: make(chan struct{}), ended: make(chan struct{})}
	host, _ := os.Hostname()
	p.process = telemetry.Process{
		Host: host, PID: os.Getpid(), Life: rand.Uint64() | 1, Name: cmp.Or(name, "db"), Began: time.Now(),
	}
	return p
}

// Close takes back what was told. It is called before the pool is closed.
func (p *Publisher) Close() {
	if p != nil {
		close(p.stop)
		<-p.ended
	}
}

func (p *Publisher) run() {
	defer close(p.ended)
	tick := time.NewTicker(TickPeriod)
	defer tick.Stop()
	for n := ticks - 2; ; n++ { // the first record soon
		p.subject.Tick(time.Since(p.process.Began)+1, n%ticks == ticks-1)
		if n%ticks == 0 {
			p.publish()
		}
		select {
		case <-p.stop:
			p.leave()
			return
		case <-tick.C:
		}
	}
}

// publish writes what there is to tell, if it can.
func (p *Publisher) publish() {
	p.subject.Tell(&p.process)
	p.process.At = time.Now()
	err := p.ready()
	if err == nil {
		err = p.writer.Publish(p.ep, &p.process)
	}
	if errors.Is(err, rdma.ErrAccess) || errors.Is(err, rdma.ErrClosed) { // the endpoint is of no more use
		_ = p.ep.Close()
		p.ep = nil
	}
}

// ready makes sure that there is an endpoint, and a writer.
func (p *Publisher) ready() (err error) {
	if p.ep == nil {
		if p.ep, err = rdma.Tell(p.fabric, "telemetry"); err != nil {
			p.ep = nil
			return err
		}
	}
	if p.writer != nil {
		return nil
	}
	r, err := telemetry.Find(p.ep, p.fabric.Nodes())
	if err == nil {
		p.writer = telemetry.NewWriter(r, p.process.Life)
	}
	return err
}

func (p *Publisher) leave() {
	if p.ep == nil {
		return
	}
	if p.writer != nil {
		p.writer.Release(p.ep)
	}
	_ = p.ep.Close()
}
