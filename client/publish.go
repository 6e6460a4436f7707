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

// Subject is what a Publisher reports on. Its methods are called by one goroutine.
type Subject interface {
	// Tick passes the time, each TickPeriod; the ages of operations are measured by it. last
	// announces that Tell follows the next Tick, so that workers have time to hand over their
	// counts.
	Tick(now time.Duration, last bool)
	// Tell updates p, which has what the last call left there: operations, verbs, counters,
	// workers.
	Tell(p *telemetry.Process)
}

// A Publisher reports once a second to a pool what a process does there: see package telemetry. If
// that fails it tries again a second later, with an endpoint of its own, so operations are not
// affected. A nil Publisher does nothing.
type Publisher struct {
	// The rest but stop and ended belongs to the goroutine of run.
	fabric  rdma.Fabric
	subject Subject
	process telemetry.Process
	ep      rdma.Endpoint
	// The writer of the pool's telemetry; nil: the telemetry was not found yet. It outlives the
	// endpoint: another one goes on with the same places.
	writer *telemetry.Writer
	// Closed by Close.
	stop  chan struct{}
	ended chan struct{}
}

// TickPeriod is how often a Subject gets the time, and so the precision of ages. Each tick wakes
// the process, which costs an idle process 150 µs.
const TickPeriod = 250 * time.Millisecond

const ticks = 4 // from one report to the next

// Publish starts to report to f's pool what a process does. name is shown to operators. It returns
// nil if the pool has no place for reports, because an older program made it, or if this process
// may only read.
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

// Close removes the process's record from the pool. It must be called before the pool is closed. A
// process that ends without it leaves its record, whose place another process takes later: see
// telemetry.StaleAfter. It is called once.
func (p *Publisher) Close() {
	if p != nil {
		close(p.stop)
		<-p.ended
	}
}

// run has one report in ticks ticks. The time that Tick gets is never 0, which stands for no
// operation. The tick before a report is announced as the last one.
func (p *Publisher) run() {
	defer close(p.ended)
	tick := time.NewTicker(TickPeriod)
	defer tick.Stop()
	for n := ticks - 2; ; n++ { // so that the first report comes soon
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

// publish writes a report, if that is possible now. A failure needs no more: what was told stays in
// the process, whose counts are sums, so the next report has it.
func (p *Publisher) publish() {
	p.subject.Tell(&p.process)
	p.process.At = time.Now()
	err := p.ready()
	if err == nil {
		err = p.writer.Publish(p.ep, &p.process)
	}
	useless := errors.Is(err, rdma.ErrAccess) || errors.Is(err, rdma.ErrClosed)
	if p.ep != nil && useless { // there is none yet where the fabric refuses to open one
		_ = p.ep.Close()
		p.ep = nil
	}
}

// ready opens an endpoint and finds the pool's telemetry, unless that is done. What it has got
// remains if the other fails.
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

// leave gives the places of the process back, where nodes answer.
func (p *Publisher) leave() {
	if p.ep == nil {
		return
	}
	if p.writer != nil {
		p.writer.Release(p.ep)
	}
	_ = p.ep.Close()
}
