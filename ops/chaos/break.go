// Package chaos breaks pools on purpose. It kills, stops, slows and cuts off memory nodes and
// clients, one break at a time or by a schedule, and measures the effects by a small load.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
)

// BreakKind is a way to break something.
type BreakKind string

// The kinds of breaks. BreakStop, BreakSlow and BreakCut last for a time: then they are mended.
const (
	BreakNode   BreakKind = "node"   // a memory node dies
	BreakClient BreakKind = "client" // the process of a client dies
	BreakMaster BreakKind = "master" // that of the master does
	BreakStop   BreakKind = "stop"   // a process stands still
	BreakSlow   BreakKind = "slow"   // a node's verbs take longer
	BreakCut    BreakKind = "cut"    // nodes are cut off from each other, from clients, or from everything
)

// BreakKinds lists all kinds.
var BreakKinds = []BreakKind{BreakNode, BreakClient, BreakMaster, BreakStop, BreakSlow, BreakCut}

// Defaults of a Break.
const (
	DefaultFault = 5 * time.Second
	DefaultSlow  = 10 * time.Millisecond
)

// Break is one thing to break.
type Break struct {
	Kind BreakKind
	Target
	For  time.Duration // of BreakStop, BreakSlow and BreakCut; default DefaultFault
	Slow time.Duration // what BreakSlow adds; default DefaultSlow
}

// String returns the break as on the command line.
func (w *Break) String() string {
	switch w.Kind {
	case BreakStop, BreakSlow:
		return fmt.Sprintf("crash %v --%s", w.Target, w.Kind)
	case BreakCut:
		return "crash --cut " + strings.TrimPrefix(strings.TrimPrefix(w.Target.String(), "nodes "), "node ")
	}
	return fmt.Sprintf("crash %v", w.Target)
}

// Target is what a Break breaks.
type Target struct {
	Nodes   []int // the node; of a BreakCut several are cut off from each other
	Client  int   // 0: none
	Master  bool  // the client that is the master
	Clients bool  // of a BreakCut: its node is cut off from clients, and not from other nodes
}

func (t Target) String() string {
	switch {
	case t.Clients:
		return fmt.Sprintf("clients,%d", t.Nodes[0])
	case t.Master:
		return "master"
	case t.Client > 0:
		return fmt.Sprintf("client %d", t.Client)
	}
	return nodesText(t.Nodes)
}

// numbers writes numbers with commas between them.
func numbers(all []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(all)), ","), "[]")
}

// Broken is what a Breaker broke.
type Broken struct {
	Kind    BreakKind     `json:"kind"`
	Nodes   []int         `json:"nodes,omitempty"`
	Client  *ops.Client   `json:"client,omitempty"`
	Process int           `json:"process,omitempty"` // that was killed or stopped
	With    int           `json:"with,omitempty"`    // other clients of that process
	At      time.Time     `json:"at"`
	For     time.Duration `json:"-"`                 // 0: for good
	Seconds float64       `json:"seconds,omitempty"` // For
	Text    string        `json:"text"`

	life uint64        // of Client
	over chan struct{} // closed when it is mended; nil: it is for good
	mend func() error
	once sync.Once
	err  error
}

// Mend ends a break that lasts for a time. It does nothing when the break is mended already, or is
// for good.
func (b *Broken) Mend() error {
	if b.over == nil {
		return nil
	}
	b.once.Do(func() {
		b.err = b.mend()
		close(b.over)
	})
	return b.err
}

// Wait waits until a break that lasts for a time is mended. When ctx ends, it mends the break early
// and returns the error of ctx.
func (b *Broken) Wait(ctx context.Context) error {
	if b.over == nil {
		return nil
	}
	select {
	case <-b.over:
		return b.Mend()
	case <-ctx.Done():
		return errors.Join(ctx.Err(), b.Mend())
	}
}

// mended reports whether nothing is left to mend: the break is over, or is for good.
func (b *Broken) mended() bool {
	if b.over == nil {
		return true
	}
	select {
	case <-b.over:
		return true
	default:
		return false
	}
}

// Breaker breaks parts of a pool on purpose. It takes a client of the pool only to write an event.
// It is not safe for concurrent use.
type Breaker struct {
	// Force permits breaks that lose data, or the pool.
	Force bool
	// Note, unless nil, is called with the event of each break: the one that the pool's events have
	// as "broken".
	Note func(telemetry.Event)

	pool   *stores.Pool
	addr   fabrics.Address
	here   *local.Pool    // the nodes' processes, where 'farkv up' started them
	broken []*Broken      // that may have to be mended
	events sync.WaitGroup // that are being written
}

// BreakFor breaks one part of a pool and calls begun. It returns when the break is mended, at the
// latest when ctx ends. A break that is for good needs no wait.
func BreakFor(ctx context.Context, addr string, what Break, force bool, begun func(*Broken)) (*Broken, error) {
	b, err := NewBreaker(addr)
	if err != nil {
		return nil, err
	}
	b.Force = force
	done, err := b.Break(ctx, what)
	if err == nil {
		begun(done)
		err = done.Wait(ctx)
	}
	return done, errors.Join(err, b.Close())
}

// Print implements Result.
func (b *Broken) Print(w io.Writer) {
	fmt.Fprintln(w, b.Text)
	if b.With > 0 {
		fmt.Fprintf(w, "and with it %s of that process\n", format.Plural(b.With, "other client", "other clients"))
	}
}

// NewBreaker opens a pool. A token that permits only to read is an error.
func NewBreaker(addr string) (*Breaker, error) {
	at, err := ops.Resolve(addr)
	if err != nil {
		return nil, err
	}
	p, err := stores.Open(at)
	if err != nil {
		return nil, ops.Explain(err, addr)
	}
	b := &Breaker{pool: p, here: ops.StartedHere(addr)}
	if b.addr, err = fabrics.Parse(p.Address); err == nil {
		err = mayBreak(p)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return b, nil
}

// mayBreak returns an error when this process may only read the pool.
func mayBreak(p *stores.Pool) error {
	if r, ok := p.Fabric.(rdma.AccessReporter); ok && r.ReadOnly() {
		return ops.Explain(fmt.Errorf("crash: break something of %s: %w", p.Address, rdma.ErrAccess), p.Address)
	}
	return nil
}

// Close mends breaks that last for a time, and closes the pool.
func (b *Breaker) Close() error {
	err := b.mendAll()
	b.events.Wait()
	return errors.Join(err, b.pool.Close())
}

// Pool returns the pool's address.
func (b *Breaker) Pool() string { return b.pool.Address }

// Break breaks one part of the pool. A break that lasts for a time is mended at its end without a
// call, and earlier by Mend, Wait or Close.
func (b *Breaker) Break(ctx context.Context, what Break) (*Broken, error) {
	if err := what.complete(); err != nil {
		return nil, err
	}
	done, err := b.do(ctx, &what)
	if err != nil {
		return nil, ops.Explain(err, b.pool.Address)
	}
	done.Kind, done.Nodes = what.Kind, what.Nodes
	if done.over != nil {
		done.For, done.Seconds = what.For, what.For.Seconds()
		b.broken = append(slices.DeleteFunc(b.broken, (*Broken).mended), done)
		time.AfterFunc(what.For, func() { _ = done.Mend() }) // Wait returns the error
	}
	b.tell(done)
	return done, nil
}

// tell writes a break into the pool's events in the background, and calls Note.
func (b *Breaker) tell(done *Broken) {
	e := done.event(b.pool)
	b.events.Go(func() { appendEvent(b.pool, e) })
	if b.Note != nil {
		b.Note(e)
	}
}

// complete sets defaults. It returns an error for a break that makes no sense.
func (w *Break) complete() error {
	lasts := w.Kind == BreakStop || w.Kind == BreakSlow || w.Kind == BreakCut
	if w.For == 0 && lasts {
		w.For = DefaultFault
	}
	if w.Slow == 0 && w.Kind == BreakSlow {
		w.Slow = DefaultSlow
	}
	if w.Kind == BreakMaster {
		w.Master = true
	}
	named := 0
	for _, is := range []bool{len(w.Nodes) > 0, w.Client > 0, w.Master} {
		if is {
			named++
		}
	}
	onNode := named == 1 && len(w.Nodes) == 1 && !w.Clients
	switch {
	case !slices.Contains(BreakKinds, w.Kind):
		return workloads.Usagef("crash: kind %q: want %s", w.Kind, kindList())
	case lasts && (w.For < 0 || w.For > fabrics.MaxFault), !lasts && w.For != 0:
		return workloads.Usagef("%v for %v: want up to %v, and no time of what is for good (hint: see 'farkv "+
			"help crash')", w, w.For, fabrics.MaxFault)
	case w.Slow < 0 || w.Slow > fabrics.MaxSlow:
		return workloads.Usagef("crash: --slow %v: want up to %v (hint: a node that takes longer counts as dead, as "+
			"with --cut)", w.Slow, fabrics.MaxSlow)
	case (w.Kind == BreakNode || w.Kind == BreakSlow) && !onNode,
		w.Kind == BreakClient && (named != 1 || w.Client == 0), w.Kind == BreakMaster && named != 1,
		w.Kind == BreakStop && (named != 1 || len(w.Nodes) > 0 && !onNode),
		w.Kind == BreakCut && (named != 1 || len(w.Nodes) == 0 || w.Clients && len(w.Nodes) != 1):
		return workloads.Usagef("%v makes no sense (hint: see 'farkv help crash')", w)
	}
	return nil
}

func kindList() string {
	return fabrics.OneOf(format.Words(BreakKinds))
}

func (b *Breaker) do(ctx context.Context, w *Break) (*Broken, error) {
	for _, may := range []func(*Break) error{b.nodesThere, b.able, b.mayLose} {
		if err := may(w); err != nil {
			return nil, err
		}
	}
	switch {
	case w.Kind == BreakNode:
		return b.killNode(w.Nodes[0])
	case w.Kind == BreakSlow, w.Kind == BreakCut:
		return b.fault(ctx, w)
	case len(w.Nodes) > 0:
		return b.stopNode(w.Nodes[0], w.For)
	}
	var master *ops.Master
	if w.Master {
		master = b.awaitMaster(ctx)
	}
	c, err := b.client(w.Target, master)
	if err != nil {
		return nil, err
	}
	if w.Kind == BreakStop {
		return b.stopClient(c, w)
	}
	return b.killClient(c, w)
}

// nodesThere returns an error unless the pool has all nodes of the break, and they are up.
func (b *Breaker) nodesThere(w *Break) error {
	all, _ := ops.NodesOf(b.pool.Fabric)
	for i, n := range w.Nodes {
		switch {
		case n < 0 || n >= len(all):
			return workloads.Usagef("%v: %s has nodes 0 to %d (hint: 'farkv status %s' shows them)", w, b.name(),
				len(all)-1, b.name())
		case !all[n].Up:
			return fmt.Errorf("%v: node %d is down already (hint: 'farkv status %s' shows the nodes)", w, n, b.name())
		case slices.Contains(w.Nodes[:i], n):
			return workloads.Usagef("%v: node %d is named twice (hint: name each once)", w, n)
		}
	}
	return nil
}

// name returns the name by which the user knows the pool.
func (b *Breaker) name() string { return ops.ShortName(b.pool.Address) }

// mayLose returns an error when a break would lose data, or the pool, and Force is not set.
func (b *Breaker) mayLose(w *Break) error {
	if len(w.Nodes) == 0 || b.Force {
		return nil
	}
	return loses(b.pool, w)
}

// killNode kills a node for good.
func (b *Breaker) killNode(node int) (*Broken, error) {
	var done *Crashed
	var err error
	if b.here != nil {
		done, err = crashStarted(b.here, node)
	} else {
		done, err = crashNode(b.pool, node)
	}
	if err != nil {
		return nil, err
	}
	how := "it is down for good"
	if done.Process > 0 {
		how = fmt.Sprintf("killed its process %d", done.Process)
	}
	return &Broken{At: time.Now(), Process: done.Process, Text: fmt.Sprintf("node %d of %s: %s", node, b.name(), how)},
		nil
}

// awaitMaster returns the pool's master, and nil when there is none. The role of a master that
// stood still has lapsed for a moment, and one that died has a successor soon: it waits for as long
// as ready does.
func (b *Breaker) awaitMaster(ctx context.Context) *ops.Master {
	f := b.pool.Fabric
	_, reports := f.(rdma.MasterReporter)
	elects := reports && b.pool.Kind.Recoverer != nil
	for end := time.Now().Add(3 * stores.Tenure(f)); ; {
		m := ops.MasterOf(f)
		if m != nil || !elects || time.Now().After(end) ||
			ops.SleepUntil(ctx, time.Now().Add(wholeEvery)) != nil {
			return m
		}
	}
}

// client returns the client of a target, given the pool's master; nil: there is none.
func (b *Breaker) client(t Target, m *ops.Master) (rdma.Client, error) {
	if !t.Master {
		c, err := ops.FindClient(b.pool, t.Client)
		if err != nil {
			return c, fmt.Errorf("crash client %d: %w", t.Client, err)
		}
		return c, nil
	}
	if m == nil {
		return rdma.Client{}, fmt.Errorf("crash master: %s has none now (hint: programs that use it are candidates, "+
			"and 'farkv keep %s' is nothing else)", b.pool.Address, b.name())
	}
	return ops.FindClient(b.pool, m.Client)
}

func (b *Breaker) killClient(c rdma.Client, w *Break) (*Broken, error) {
	done, err := crashClient(b.pool, c, "")
	if err != nil {
		return nil, err
	}
	return &Broken{
		At: time.Now(), Client: done.Client, life: c.Life, Process: c.PID, With: len(done.With),
		Text: fmt.Sprintf("%sclient %d %q of %s: killed its process %d", masterly(w.Master), c.ID, c.Name,
			b.name(), c.PID),
	}, nil
}
