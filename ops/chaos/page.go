package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/tui/pages"
)

// PageBreaker breaks what the monitor's page asks for: it is a pages.Breaker. What came of it is
// measured by a probe load, as a schedule's breaks are.
type PageBreaker struct {
	addr  string
	group sync.WaitGroup // of looks

	mu      sync.Mutex
	offers  []pages.Offer
	targets map[string]Target // by kind and name, as they were offered
	looked  time.Time
	looking bool
}

// NewPageBreaker returns one for the pool at an address. Offers say why nothing may be broken
// there.
func NewPageBreaker(addr string) *PageBreaker { return &PageBreaker{addr: addr} }

// Close waits for what runs in the background.
func (p *PageBreaker) Close() { p.group.Wait() }

// offersEvery is how long offers are good: a look asks all memory nodes.
const offersEvery = 3 * time.Second

// abouts say what kinds of breaks do.
var abouts = map[BreakKind]string{
	BreakNode:   "a memory node dies for good",
	BreakClient: "the process of a client dies",
	BreakMaster: "the process of the pool's master dies",
	BreakStop:   "a process stands still for a while",
	BreakSlow:   "each verb of a memory node takes longer for a while",
	BreakCut:    "a memory node is cut off from everything for a while",
}

// Offers returns what was possible at the last look. It does not wait: it begins a look where the
// last one is old.
func (p *PageBreaker) Offers(*telemetry.Sample) []pages.Offer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.looking && time.Since(p.looked) > offersEvery {
		p.looking = true
		p.group.Go(p.look)
	}
	return p.offers
}

// look finds out what is possible.
func (p *PageBreaker) look() {
	offers, targets := p.find()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offers, p.targets, p.looked, p.looking = offers, targets, time.Now(), false
}

func (p *PageBreaker) find() (offers []pages.Offer, targets map[string]Target) {
	targets = map[string]Target{}
	b, err := NewBreaker(p.addr)
	if err == nil {
		defer b.Close() // nothing was broken
	}
	for _, kind := range BreakKinds {
		o := pages.Offer{Kind: string(kind), About: abouts[kind]}
		if kind == BreakStop || kind == BreakSlow || kind == BreakCut {
			o.Amount = DefaultFault
		}
		if err != nil {
			o.Refused = err.Error()
			offers = append(offers, o)
			continue
		}
		master := ops.MasterOf(b.pool.Fabric)
		all, why := b.Targets(kind, master)
		for _, t := range all {
			targets[o.Kind+" "+t.String()] = t
			o.Targets = append(o.Targets, pages.Target{Name: t.String(), About: b.about(t, master)})
		}
		if len(all) == 0 {
			o.Refused = why.Error()
		}
		if _, ok := b.pool.Fabric.(rdma.ClientCrasher); ok && kind == BreakClient {
			o.Steps = format.Words(b.pool.Kind.Steps)
		}
		offers = append(offers, o)
	}
	return offers, targets
}

// about names the process of a client that may be broken.
func (b *Breaker) about(t Target, master *ops.Master) string {
	if t.Client == 0 && !t.Master {
		return ""
	}
	c, err := b.client(t, master)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%q of process %d", c.Name, c.PID)
}

// tellEvery is how often the page hears of a break that goes on.
const tellEvery = 500 * time.Millisecond

// Break breaks one of the targets that were offered, and waits until the pool is whole.
func (p *PageBreaker) Break(ctx context.Context, what pages.Break, tell func(pages.Outcome)) (err error) {
	p.mu.Lock()
	target, ok := p.targets[what.Kind+" "+what.Target]
	p.looked = time.Time{} // what is possible changes
	p.mu.Unlock()
	if !ok {
		return fmt.Errorf("crash %s: it was not offered", what.Target)
	}
	b, err := NewBreaker(p.addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	load, err := startProbe(b.Pool())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, load.stop()) }()
	load.begin()
	done, err := b.asked(ctx, what, target)
	if err != nil {
		return err
	}
	r := &told{tell: tell, load: load, began: done.At}
	defer r.every(tellEvery)()
	r.say(done.Text)
	whole, err := b.UntilWhole(ctx, done, DefaultPatience, nil,
		func(waits string) { r.say(done.Text + "; waits for " + waits) })
	if err == nil {
		r.whole(done.Text, whole)
	}
	return errors.Join(err, done.Mend())
}

// asked breaks what the page asks for.
func (b *Breaker) asked(ctx context.Context, what pages.Break, target Target) (*Broken, error) {
	if what.Step == "" {
		return b.Break(ctx, Break{Kind: BreakKind(what.Kind), Target: target, For: what.Amount})
	}
	c, err := b.client(target, ops.MasterOf(b.pool.Fabric))
	if err != nil {
		return nil, err
	}
	done, err := crashClient(b.pool, c, rdma.Step(what.Step))
	if err != nil {
		return nil, ops.Explain(err, b.pool.Address)
	}
	broken := &Broken{Kind: BreakClient, At: time.Now(), Client: done.Client, Text: firstLine(done), life: c.Life}
	appendEvent(b.pool, broken.event(b.pool))
	return broken, nil
}

// told passes on what comes of a break.
type told struct {
	tell  func(pages.Outcome)
	load  *probe
	began time.Time

	mu   sync.Mutex
	last pages.Outcome
}

// say changes the text, and brings the figures up to date.
func (r *told) say(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.Text = text
	r.update()
}

func (r *told) update() {
	if r.last.Done {
		return
	}
	so := r.load.so()
	r.last.UntilWhole, r.last.Failed, r.last.LongestGap = time.Since(r.began), uint64(so.Failed), so.Gap
	r.tell(r.last)
}

// whole says that the pool is whole since a moment.
func (r *told) whole(text string, since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.Text = text
	r.update()
	r.last.UntilWhole, r.last.Done = since.Sub(r.began), true
	r.tell(r.last)
}

// every brings the figures up to date again and again, until the function that it returns is
// called.
func (r *told) every(d time.Duration) (stop func()) {
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				r.mu.Lock()
				r.update()
				r.mu.Unlock()
			}
		}
	})
	return func() {
		close(done)
		group.Wait()
	}
}
