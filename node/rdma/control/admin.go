package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/transport"
)

// How a pool is made, opened and removed. The process that makes one asks all nodes to adopt it,
// connects to their memory, writes the first content, and asks all to seal it. What a crash of that
// process leaves:
//
//	before the first seal    nothing: nodes give the pool up a lease behind its last connection
//	between two seals        some nodes have a pool that may be opened; others count as dead
//	behind the last seal     a pool
//
// A process that opens a pool asks the nodes that it was told of what they are. The record that
// they agree on names all others. Then it connects to all of them, and needs a majority of the
// voters.

// callPatience bounds the first call of a node: as long as a node takes for a greeting at most.
const callPatience = 3 * time.Second

var machine, _ = os.Hostname() // for people

// Inspect asks nodes what they are, at once. The errors are those of nodes that do not tell, by
// address. A node is asked once, and has callPatience.
func Inspect(ctx context.Context, o Options) ([]NodeInfo, []error) {
	return inspect(ctx, o, func(*NodeInfo) {})
}

// inspect is Inspect that passes on each answer when it comes, many at a time. take is called by
// several goroutines. What it gets is not changed any more.
func inspect(ctx context.Context, o Options, take func(*NodeInfo)) ([]NodeInfo, []error) {
	infos, errs := make([]NodeInfo, len(o.Addresses)), make([]error, len(o.Addresses))
	var group sync.WaitGroup
	for i, addr := range o.Addresses {
		group.Go(func() {
			var r Reply
			r, errs[i] = once(ctx, addr, o.Security, &Message{Do: DoInspect, Self: o.Self})
			infos[i].Address = addr
			if errs[i] == nil && r.Info != nil {
				infos[i] = *r.Info
				infos[i].Address = addr
				take(&infos[i])
			}
		})
	}
	group.Wait()
	return infos, errs
}

// once asks a node one thing about no pool, on a connection of its own. The node counts no process
// for it.
func once(ctx context.Context, addr string, s transport.Security, m *Message) (Reply, error) {
	return Ask(ctx, addr, s, transport.Hello{Purpose: transport.ForControl, Process: transport.NewID(),
		PID: transport.PID}, m)
}

// Ask asks a node one thing, on a connection of its own. It is asked once. The error leaves open
// whether the node did it. It ends with the context, and takes callPatience at most. What the node
// refuses keeps the node's status and text: errors.Is finds what the status means.
func Ask(ctx context.Context, addr string, s transport.Security, h transport.Hello, m *Message) (Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, callPatience)
	defer cancel()
	c, _, err := transport.Dial(ctx, addr, s, h)
	if err != nil {
		return Reply{}, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if by, ok := ctx.Deadline(); ok {
		c.SetDeadline(by)
	}
	var r Reply
	err = transport.WriteMessage(c, transport.KindControl, transport.StatusOK, m)
	st := transport.StatusOK
	if err == nil {
		st, err = transport.ReadMessage(c, transport.KindControl, transport.MaxAnswer, &r)
	}
	switch {
	case err != nil:
		return r, fmt.Errorf("ask node at %s: %w", addr, transport.DownUnless(err))
	case st != transport.StatusOK:
		return r, fmt.Errorf("ask node at %s: %w", addr, &transport.Refused{Status: st, Text: r.Text})
	}
	return r, nil
}

// Create makes a pool on nodes that have none, and opens it. Others can open it only when format,
// which writes the first content, has returned nil; when it fails, or this process ends before, the
// nodes are as they were. Errors wrap rdma.ErrExists when a node has a pool, rdma.ErrFull when one
// offers too little memory, or what format returned. Without format the content is zero.
func Create(o Options, g Geometry, format func(*Pool) error) (*Pool, error) {
	f, err := create(o, g, format)
	if err != nil {
		return nil, fmt.Errorf("create a pool on %d nodes: %w", len(o.Addresses), err)
	}
	return f, nil
}

// create fills in defaults, and checks the record before a node hears of it.
func create(o Options, g Geometry, format func(*Pool) error) (*Pool, error) {
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.ID == "" {
		o.ID = transport.NewID()
	}
	r := Record{
		ID: o.ID, Addresses: slices.Concat(o.Addresses, o.Witnesses), Nodes: len(o.Addresses),
		Memory: rdma.Geometry(g).Registered(), Telemetry: g.Telemetry, Clients: g.Clients, Lease: o.Lease,
		Registry: o.RegistryName, MTU: o.MTU, Fabric: o.Fabric,
	}
	if g.Nodes != len(o.Addresses) {
		return nil, fmt.Errorf("%d addresses for %d nodes: %w", len(o.Addresses), g.Nodes, rdma.ErrAccess)
	}
	if err := r.Check(MaxMemory); err != nil {
		return nil, err
	}
	f := New(o, r)
	if err := f.make(format); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// make has the nodes adopt the pool, and fills it. The order is adopt, connect for verbs, format,
// seal. Nodes let no connection for verbs in before they have adopted the pool. A crash before the
// first seal leaves nodes that give the pool up when a lease has passed without this process. No
// other process can open it before. A failure is undone here, where the nodes hear of it.
func (p *Pool) make(format func(*Pool) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), callPatience)
	defer cancel()
	if err := p.ConnectControl(ctx); err != nil {
		return err
	}
	adopted := make([]bool, len(p.links))
	err := p.each(all, callPatience, func(node int) *Message {
		r := p.record
		r.Index = node
		return &Message{Do: DoAdopt, Record: &r}
	}, func(node int, _ Reply) { adopted[node] = true })
	if errors.Is(err, rdma.ErrHeld) {
		err = fmt.Errorf("%w: %w", rdma.ErrExists, err)
	}
	if err == nil {
		err = p.fill(ctx, format)
	}
	// nodes that do not hear it let go when the connection ends, unless the pool may be opened
	// there already
	if err != nil {
		m := &Message{Do: DoDrop, Pool: p.record.ID, Force: true}
		_ = p.each(func(n int) bool { return adopted[n] }, transport.DeadAfter, func(int) *Message { return m }, nil)
	}
	return err
}

// all names every node to each.
func all(int) bool { return true }

// fill writes the first content of a pool that is this process's alone, and lets others open it. A
// crash between two nodes leaves some that are sealed: see memnode's Node.seal.
func (p *Pool) fill(ctx context.Context, format func(*Pool) error) error {
	if err := p.ConnectVerbs(ctx); err != nil {
		return err
	}
	if format != nil {
		if err := format(p); err != nil {
			return err
		}
	}
	m := &Message{Do: DoSeal, Pool: p.record.ID}
	return p.each(all, callPatience, func(int) *Message { return m }, nil)
}

// Open opens a pool by the addresses of some of its nodes. Errors wrap rdma.ErrNoPool when they
// have none, transport.ErrToken, rdma.ErrNodeDown when too few nodes answer, rdma.ErrMinority when
// fewer than a majority of the voters does. Silent nodes cost it transport.DeadAfter, and
// callPatience where none of the others has the pool, or too few are in reach.
func Open(o Options) (*Pool, error) {
	f, err := open(o)
	if err != nil {
		return nil, fmt.Errorf("open a pool: %w", err)
	}
	return f, nil
}

// open connects the links of both kinds at the same time. Nodes that are silent are called again in
// the background: they may come back.
func open(o Options) (*Pool, error) {
	r, silent, err := RecordOf(o)
	if err != nil {
		return nil, err
	}
	if r.Registry != "" && o.Registry == nil {
		return nil, &OtherRegistry{r.Registry}
	}
	if r.Fabric != o.Fabric {
		return nil, &OtherFabric{cmp.Or(r.Fabric, "tcp")}
	}
	f := New(o, *r)
	h := newHurry()
	defer h.end()
	var controls, verbs []error
	var both sync.WaitGroup
	both.Go(func() { controls = f.reach(h, controlOf, silent) })
	both.Go(func() { verbs = f.reach(h, verbsOf, silent) })
	both.Wait()
	// A majority of the voters has to answer now: with fewer, neither could a client claim an
	// identity nor would a node serve.
	up := 0
	m := &Message{Do: DoAttached, Pool: r.ID} // a node that was started anew answers, too, but is no voter any more
	absent := f.each(func(n int) bool { return n < f.record.Voters() && controls[n] == nil }, transport.DeadAfter,
		func(int) *Message { return m }, func(int, Reply) { up++ })
	if up <= f.record.Voters()/2 {
		err := fmt.Errorf("%d of its %d voters answer: %w: %w", up, f.record.Voters(),
			rdma.ErrMinority, joined(append(append(controls, absent), verbs...)))
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// hurry bounds the time of calls to a pool's nodes. It ends callPatience after it began or, once
// enough was called, transport.DeadAfter after it began. So silent nodes do not hold up a caller
// that can do without them. It is the context of the calls: any of them may call enough. end frees
// its timers.
type hurry struct {
	context.Context
	end   context.CancelFunc
	since time.Time
	once  sync.Once
}

// newHurry begins to count. The caller calls end.
func newHurry() *hurry {
	ctx, end := context.WithTimeout(context.Background(), callPatience)
	return &hurry{Context: ctx, end: end, since: time.Now()}
}

// enough is called when the nodes that have answered suffice.
func (h *hurry) enough() {
	h.once.Do(func() {
		late := time.AfterFunc(transport.DeadAfter-time.Since(h.since), h.end)
		context.AfterFunc(h, func() { late.Stop() })
	})
}

// OtherFabric is why a pool cannot be opened so: its verbs go over another fabric. It is found
// before the pool has a link.
type OtherFabric struct {
	Fabric string // "tcp", or as in Record
}

func (e *OtherFabric) Error() string {
	return fmt.Sprintf("its verbs go over %s (hint: open it as %s:...)", e.Fabric, e.Fabric)
}

// OtherRegistry is why a pool cannot be opened by its nodes alone.
type OtherRegistry struct {
	Registry string // as Options.RegistryName gave it when the pool was made
}

func (e *OtherRegistry) Error() string {
	return "its registry is kept by " + e.Registry + ": open it there"
}

// RecordOf asks for the record of the pool that the addressed nodes have. Silent are those of them
// that did not answer though most voters did, and why: they have had their time.
// Without such a majority it names none, so that the caller waits for each of them once more.
func RecordOf(o Options) (r *Record, silent map[string]error, err error) {
	h := newHurry()
	defer h.end()
	infos, errs := inspect(h, o, func(i *NodeInfo) {
		if i.Pool != nil && i.Sealed {
			h.enough()
		}
	})
	if r, err = agreed(o, infos, errs); err != nil {
		return nil, nil, err
	}
	voters := map[int]bool{}
	silent = map[string]error{}
	for i, info := range infos {
		if errs[i] != nil {
			silent[info.Address] = errs[i]
		} else if p := info.Pool; p != nil && p.ID == r.ID && p.Index < r.Voters() {
			voters[p.Index] = true
		}
	}
	if len(voters) <= r.Voters()/2 {
		silent = nil
	}
	return r, silent, nil
}

// agreed is the record that nodes have told: of those that are sealed, and of the wanted pool where
// one is named. One such node is enough, since the record never changes. Two pools are an error,
// which wraps rdma.ErrNoPool: the addresses mix nodes of both. A pool that no node has sealed may
// not be opened. With no record the error is why nodes did not tell, if some did not.
func agreed(o Options, infos []NodeInfo, errs []error) (*Record, error) {
	var r *Record
	from, half := 0, false // from: the node that reported r; half: a node has a pool that is not sealed yet
	for i, info := range infos {
		switch p := info.Pool; {
		case errs[i] != nil || p == nil:
		case o.ID != "" && p.ID != o.ID: // it has been given to another pool
		case !info.Sealed:
			half = true
		case r != nil && r.ID != p.ID:
			return nil, fmt.Errorf("nodes %s and %s have different pools: %w", infos[i].Address,
				infos[from].Address, rdma.ErrNoPool)
		default:
			r, from = p, i
		}
	}
	if r != nil {
		return r, r.Check(MaxMemory)
	}
	if err := joined(errs); err != nil {
		if slices.Contains(errs, nil) {
			return nil, fmt.Errorf("nodes that answer have none, and others do not: %w", err)
		}
		return nil, err
	}
	if half {
		return nil, fmt.Errorf("it is being made, or that failed: %w", rdma.ErrNoPool)
	}
	return nil, fmt.Errorf("the nodes have none: %w", rdma.ErrNoPool)
}

// Remove takes a pool away from its nodes, which run on without one. Unless forced it refuses with
// rdma.ErrInUse while other processes use it, and with rdma.ErrUnreachable where a node that does
// not answer may know of some. Nodes that do not answer are named in the error, after the others
// have let go of it; those that are gone from the view need not answer. A crash in the midst leaves
// nodes that have let go, and nodes that have not: it may be called again.
func Remove(o Options, force bool) error {
	r, silent, err := RecordOf(o)
	if err != nil {
		return fmt.Errorf("remove a pool: %w", err)
	}
	o.Addresses = r.Addresses
	f := New(o, *r)
	h := newHurry()
	defer h.end()
	f.reach(h, controlOf, silent)
	_, _ = f.ReadView() // notes which nodes are gone; without it all are to answer
	if !force {
		err = f.unused()
	}
	if err == nil {
		err = f.drop()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("remove a pool: %w", err)
	}
	return nil
}

// unused returns why the pool may not be removed. A process that begins to use the pool behind this
// is not noticed: drop is forced. Processes without a client do not count, nor do servers beside
// nodes, which are a part of the pool.
func (ctl *Control) unused() error {
	users := ctl.attached()
	if users == nil {
		return fmt.Errorf("a node that does not answer may know of clients: %w", rdma.ErrUnreachable)
	}
	for name := range users {
		if name != ctl.process && !IsBeside(name) && !ctl.isIdle(name) {
			return rdma.ErrInUse
		}
	}
	return nil
}

// drop has all nodes let go of the pool. Those that are gone from the view are asked, too, but may
// fail: they may run, and keep memory.
func (ctl *Control) drop() error {
	m := &Message{Do: DoDrop, Pool: ctl.record.ID, Force: true}
	drop := func(int) *Message { return m }
	living := ctl.living()
	_ = ctl.each(func(n int) bool { return !living(n) }, transport.DeadAfter, drop, nil)
	return ctl.each(living, callPatience, drop, nil)
}

// isIdle reports whether a process that is attached has no client: it only looks, such as a
// monitor. When the registry cannot say, it counts as one that has.
func (ctl *Control) isIdle(process string) bool {
	holders, err := ctl.registry.Clients()
	if err != nil {
		return false
	}
	for _, h := range holders {
		if h.Process == process {
			return false
		}
	}
	return true
}
