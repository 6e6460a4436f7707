package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Options say how a process uses a pool. Zero values mean defaults.
type Options struct {
	// Addresses are HOST:PORT of the pool's nodes, in their order, when it is made; of some of them
	// when it is opened.
	Addresses []string
	// Witnesses are nodes that hold nothing but vote, when it is made: a pool of two nodes
	// and a witness survives the death of one of them.
	Witnesses []string
	Security  transport.Security
	// ID names the pool when it is made; "": a new one. When it is opened, it must be that; "":
	// whichever the nodes have.
	ID string
	// Registry keeps the pool's registry; nil: the nodes themselves do.
	Registry membership.Store
	// RegistryName names it in the pool's record, and Glance, unless nil, spares it questions: see
	// membership.Options.
	RegistryName string
	Glance       func() (r membership.Record, since time.Duration, ok bool)
	// Self is the Process of an open Fabric that Inspect is to leave out of the count of processes;
	// "": all count.
	Self string
	// Fabric is what the pool's verbs go over: see Record. When it is opened, it must be that.
	Fabric string
	// MTU is how long a block of a ring's entry is, when the pool is made: 256 to 4096 bytes, and
	// 4096 by default.
	MTU int
	// Beside is the node of this process that is number BesideNode of the pool: what goes there
	// goes past the network. See memnode/beside.go. Nil: there is none.
	Beside     transport.Neighbor
	BesideNode int
	// Lease of the nodes when the pool is made; default DefaultLease.
	Lease time.Duration
	// Seed is what the workers' generators derive from; 0: a random one.
	Seed uint64
}

// Local reports whether all nodes are processes of this machine, as far as their addresses tell.
func (n *nodes) Local() bool {
	return !slices.ContainsFunc(n.record.Addresses, func(addr string) bool { return !OnLoopback(addr) })
}

// Geometry is the shape of a pool.
type Geometry rdma.Geometry

// Pool is what a process has of an open pool beside the verbs: connections to its nodes, their
// control, and what workers share. A fabric adds the verbs. It is safe for concurrent use.
type Pool struct {
	*Control
	o        Options
	lives    atomic.Uint64 // of client 0
	boxes    mailboxes
	meetings meetings
	crowd    atomic.Int32 // workers that have answers and have not seen them yet: they are about to post
	once     sync.Once
	closed   error
	onClose  func() // see OnClose

	// mu is not held while a node or the registry is asked.
	mu sync.Mutex
	// owed ends with the process. Other processes find these identities held by a process that is
	// gone, and recover them.
	owed []rdma.Client // identities to give back, once the registers are in reach
}

// Control is the control of a pool's view, roles and identities by its nodes: rdma.Control, and
// what else is asked of the nodes and the registers of membership. It is safe for concurrent use.
type Control struct {
	*nodes
	registry *membership.Registry
	quorum   *membership.Quorum // nil when another service keeps the registers
	leaving  atomic.Int32       // identities that are being given back

	// looking is held by the look under way.
	looking sync.Mutex
	// mu is held for moments only, over what follows.
	mu   sync.Mutex
	next *sight    // that is read next; nil: no worker waits for it
	last rdma.View // that was seen last
	// expelled differs from downs by the time between the mark on the registry and the end of the
	// node's leases: verbs end at the mark, fences need the node's answer until its end.
	expelled []bool // nodes that serve no client any more, for sure
	downs    []atomic.Bool
	attended []attendance // by node, what it said last of processes
}

// nodes are this process's connections to the nodes of a pool.
type nodes struct {
	name   string
	record Record // that of no node in particular
	// process is drawn anew each time that the pool is opened. Registry and nodes know it by this,
	// and never by its PID.
	process   string  // names this process's part among all that ever open the pool
	links     []links // by node, and then by witness
	elsewhere bool    // another service than the nodes keeps the registers

	closing atomic.Bool
	closeBy atomic.Int64  // until when Close waits for nodes that are down, on realtime.Now; 0: it was not called
	stop    chan struct{} // closed when closing is set
	tasks   realtime.Tasks
	cut     chan struct{} // closed when no connection is needed any more
	keepers sync.WaitGroup
}

// links are this process's connections to one node.
type links struct{ verbs, control *transport.Link }

// New begins to connect to all nodes of a pool.
func New(o Options, r Record) *Pool {
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	n := newNodes(&o, r)
	f := &Pool{Control: newControl(n, &o), o: o, boxes: mailboxes{by: map[uint32]*mailbox{}},
		meetings: meetings{by: map[uint32]*Meeting{}}}
	for i, l := range n.links[:r.Nodes] {
		l.verbs.Begun = func(s transport.Sending) { f.boxes.begun(s, i) }
		l.verbs.Takes = func(h transport.Header, body []byte) error { return f.mail(i, h, body) }
	}
	return f
}

// newNodes makes the links to all nodes, and calls none. A witness has none for verbs. With devices
// each node is asked four times in a lease for how long it serves: see Control.Served. Without
// devices the node of this process is reached by calls of functions: see memnode/beside.go.
func newNodes(o *Options, r Record) *nodes {
	n := &nodes{
		name: cmp.Or(o.Fabric, "tcp") + ":" + strings.Join(r.Addresses[:r.Nodes], ","), record: r,
		process: transport.NewID(), elsewhere: o.Registry != nil, stop: make(chan struct{}), cut: make(chan struct{}),
	}
	if o.Beside != nil {
		n.process = besideID + n.process
	}
	for i, addr := range r.Addresses {
		h := transport.Hello{Purpose: transport.ForControl, Process: n.process, PID: transport.PID, Pool: r.ID, Node: i}
		l := links{control: transport.NewLink(addr, o.Security, h, n.cut)}
		if i < r.Nodes {
			h.Purpose = transport.ForVerbs
			l.verbs = transport.NewLink(addr, o.Security, h, n.cut)
			if r.Fabric != "" {
				l.verbs.Every = r.Lease / 4
			} else if o.Beside != nil && i == o.BesideNode {
				l.verbs.Beside = o.Beside
			}
		}
		n.links = append(n.links, l)
	}
	return n
}

// newControl knows no view yet: the zero one, of epoch 0, is older than any. A process that may
// only read has a registry that changes nothing.
func newControl(n *nodes, o *Options) *Control {
	r := &n.record
	c := &Control{
		nodes: n, expelled: make([]bool, r.Nodes), downs: make([]atomic.Bool, r.Nodes),
		last: rdma.View{Members: make([]rdma.Member, r.Nodes)}, attended: make([]attendance, len(r.Addresses)),
	}
	store := o.Registry
	if store == nil {
		if c.quorum = membership.NewQuorum(r.Voters(), asker{c}); o.Security.ReadsOnly() {
			c.quorum = membership.NewReader(r.Voters(), asker{c})
		}
		store = c.quorum
	}
	c.registry = membership.New(closingStore{store, n}, membership.Options{
		Nodes: r.Nodes, Clients: r.Clients, Process: n.process, Machine: machine, PID: transport.PID,
		Now: realtime.Now, Revoke: c.RevokeLife, Glance: o.Glance,
	})
	return c
}

// Link is the process's connection to a node for verbs.
func (n *nodes) Link(node int) *transport.Link { return n.links[node].verbs }

// ask asks the node something over its link for control.
func (l links) ask(m *Message, within time.Duration) (Reply, error) {
	return transport.Ask[Reply](l.control, m, within)
}

// connect connects the links that which names to all nodes, at once, and keeps them so. It returns
// when all are connected or have failed for the first time, with the reasons.
func (n *nodes) connect(ctx context.Context, which func(links) *transport.Link) []error {
	return n.call(ctx, which, nil, func() {})
}

// reach is connect that does not wait for nodes that are known to be silent, by their addresses,
// and not for long for others once a majority is there.
func (n *nodes) reach(h *hurry, which func(links) *transport.Link, silent map[string]error) []error {
	return n.call(h, which, silent, func() {
		if n.HasMajority() {
			h.enough()
		}
	})
}

// Each link has a goroutine that keeps it, from here until cut is closed, also when its first call
// failed.
func (n *nodes) call(ctx context.Context, which func(links) *transport.Link, silent map[string]error,
	connected func()) []error {
	errs := make([]error, len(n.links))
	var first sync.WaitGroup
	for i, all := range n.links {
		l := which(all)
		if l == nil {
			continue
		}
		if errs[i] = silent[l.Addr]; errs[i] != nil {
			n.keepers.Go(func() { l.Keep(false) })
			continue
		}
		first.Add(1)
		n.keepers.Go(func() {
			_, err := l.Connect(ctx)
			if errs[i] = err; err == nil {
				connected()
			}
			first.Done()
			l.Keep(err == nil)
		})
	}
	first.Wait()
	return errs
}

func controlOf(l links) *transport.Link { return l.control }

func verbsOf(l links) *transport.Link { return l.verbs }

// Carrier returns what the pool's verbs go over, as in addresses.
func (p *Pool) Carrier() string { return cmp.Or(p.o.Fabric, "tcp") }

// Process returns the name by which the pool's nodes know this process.
func (n *nodes) Process() string { return n.process }

// Nodes returns the number of memory nodes.
func (n *nodes) Nodes() int { return n.record.Nodes }

// Size returns the bytes of registered memory of each node that the store has.
func (n *nodes) Size() uint64 { return n.record.Memory - n.record.Telemetry }

// Geometry returns the pool's shape.
func (n *nodes) Geometry() rdma.Geometry {
	r := &n.record
	return rdma.Geometry{Nodes: r.Nodes, Memory: n.Size(), Clients: r.Clients, Telemetry: r.Telemetry}
}

// Record returns what the pool's nodes know of it.
func (n *nodes) Record() Record { return n.record }

// Tenure is how long a master's lease of this pool should be: it costs some questions to the
// registry to keep one.
func (ctl *Control) Tenure() time.Duration {
	if ctl.quorum == nil {
		return 2 * time.Second
	}
	return min(max(4*ctl.record.Lease, 400*time.Millisecond), membership.MaxLease)
}

// Worker returns a worker with an identity of its own. A read-only process has no identity, and is
// client 0.
func (p *Pool) Worker(name string) (*Worker, error) {
	w, err := p.claim(name)
	if err != nil {
		return nil, fmt.Errorf("open %s as %s: %w", p.name, name, err)
	}
	return w, nil
}

// A process is connected before it claims. So some node names this process when all are asked,
// behind the read of an identity's record, which processes are alive.
func (p *Pool) claim(name string) (*Worker, error) {
	if p.closing.Load() {
		return nil, rdma.ErrClosed
	}
	p.giveBack()
	if p.ReadOnly() {
		return p.worker(p.anonymous())
	}
	c, err := p.registry.Claim(name)
	if err != nil {
		return nil, err
	}
	return p.worker(c)
}

// Anonymous returns a worker without an identity. Its process may have either token.
func (p *Pool) Anonymous(name string) (*Worker, error) {
	w, err := (*Worker)(nil), error(rdma.ErrClosed)
	if !p.closing.Load() {
		w, err = p.worker(p.anonymous())
	}
	if err != nil {
		return nil, fmt.Errorf("open %s as %s: %w", p.name, name, err)
	}
	return w, nil
}

// anonymous is client 0 with a life of its own, so that one that strays takes down no other.
func (p *Pool) anonymous() rdma.Client { return rdma.Client{Life: p.lives.Add(1)} }

// The epoch that it joins is read behind its claim. A master that lists the clients before that,
// and fences a later epoch, has the worker's verbs refused until it joins.
func (p *Pool) worker(c rdma.Client) (*Worker, error) {
	v, err := p.ReadView()
	if err != nil {
		return nil, errors.Join(err, p.release(c))
	}
	return &Worker{
		pool: p, Identity: c, joined: v.Epoch, Lost: make([]error, p.record.Nodes),
		Flying: make([]int,
			p.record.Nodes), Waits: transport.NewWaiter(&p.crowd), rights: transport.Rights{Client: c.ID, Life: c.Life},
		rand: rand.New(rand.NewPCG(p.o.Seed, c.Life<<16|uint64(c.ID))),
	}, nil
}

// ReadOnly reports whether this process may do nothing but read: it knows the read token alone.
func (p *Pool) ReadOnly() bool {
	return p.o.Security.ReadsOnly()
}

// release gives an identity back. When the registry is out of reach, the next Open or Close gives
// it back. No other process could, as long as this one lives. A crash before leaves the identity
// with a process that the nodes find gone.
func (p *Pool) release(c rdma.Client) error {
	if c.ID == 0 {
		return nil
	}
	err := p.awaitMajority()
	if err == nil {
		p.leaving.Add(1)
		err = p.registry.Release(c)
		p.leaving.Add(-1)
	}
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.owed = append(p.owed, c)
	}
	return err
}

// giveBack releases what could not be released before. Those that were fenced off or forgotten
// meanwhile it leaves alone.
func (p *Pool) giveBack() {
	if !p.HasMajority() {
		return // to wait for it takes seconds
	}
	p.mu.Lock()
	owed := p.owed
	p.owed = nil
	p.mu.Unlock()
	for i, c := range owed {
		if p.release(c) != nil { // then the others cannot be, either
			p.mu.Lock()
			p.owed = append(p.owed, owed[i+1:]...)
			p.mu.Unlock()
			return
		}
	}
}

// HasMajority reports whether enough nodes are connected to keep the registry, or another service
// keeps it.
func (n *nodes) HasMajority() bool {
	up := 0
	for _, l := range n.links[:n.record.Voters()] {
		if l.control.Up() == nil {
			up++
		}
	}
	return n.elsewhere || up > n.record.Voters()/2
}

// awaitMajority waits until enough nodes are connected to keep the registry. Those that have been
// out of reach for transport.DeadAfter it does not wait for, so that many endpoints that are closed
// without a majority wait once, altogether.
func (n *nodes) awaitMajority() error {
	voters := n.record.Voters()
	for !n.HasMajority() {
		hope := 0
		for _, l := range n.links[:voters] {
			if n.worthWaiting(l.control) > 0 {
				hope++
			}
		}
		if hope <= voters/2 {
			return fmt.Errorf("%d of %d voters are out of reach: %w", voters-hope, voters, rdma.ErrMinority)
		}
		time.Sleep(transport.RedialMin)
	}
	return nil
}

// worthWaiting returns for how long a client that leaves waits for an answer over a link. It is not
// positive for nodes that have been out of reach for long.
func (n *nodes) worthWaiting(l *transport.Link) time.Duration {
	down, by := l.DownFor(), time.Duration(n.closeBy.Load())
	switch {
	case down == 0:
		return transport.DeadAfter
	case by > 0:
		return min(transport.DeadAfter-down, by-realtime.Now())
	}
	return transport.DeadAfter - down
}

// leave ends an endpoint's life, and its tenure as master.
func (p *Pool) leave(e *Worker) error {
	if err := p.release(e.Identity); err != nil {
		return fmt.Errorf("close client %d of %s: %w", e.Identity.ID, p.name, err)
	}
	return nil
}

// patience bounds the wait for tasks that were asked to stop.
const patience = 10 * time.Second

// Close asks the tasks to stop and joins them; those that do not stop within 10 s are named in the
// error, and may be waited for again. Endpoints that are open post no more, and are dead for the
// pool: close them before. While too few nodes answer it takes a second or two, and the error,
// which wraps rdma.ErrUnreachable, names the clients of which it could not give back the
// identities: they count as dead, and are recovered, once the nodes know this process no more.
func (p *Pool) Close() error {
	if !p.closing.Swap(true) {
		p.closeBy.Store(int64(realtime.Now() + transport.DeadAfter))
		close(p.stop)
		p.rouse()
	}
	if err := p.tasks.Join(patience); err != nil {
		return fmt.Errorf("close %s: %w", p.name, err)
	}
	p.once.Do(func() {
		// Identities first, while there are connections. The goodbye comes behind them: when the
		// nodes take the process for gone, what it could give back it has.
		p.closed = p.giveAllBack()
		p.bye()
		p.Disconnect()
		if p.quorum != nil {
			p.quorum.Close()
		}
		if p.onClose != nil {
			p.onClose()
		}
	})
	return p.closed
}

// OnClose has last called when the fabric is closed, behind its last use of anything, such as of
// Options.Registry. It is called before others have the fabric.
func (p *Pool) OnClose(last func()) { p.onClose = last }

// giveAllBack gives back what this process has of the registry, or says what it has to leave.
func (p *Pool) giveAllBack() error {
	err := p.registry.Settle()
	p.giveBack()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.owed) > 0 {
		var left []string
		for _, c := range p.owed {
			left = append(left, fmt.Sprint(c.ID))
		}
		err = errors.Join(err, fmt.Errorf("clients %s were not given back: %w", strings.Join(left, ", "),
			rdma.ErrUnreachable))
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", p.name, err)
	}
	return nil
}

// ConnectControl connects the links for control to all nodes, and keeps them so.
func (n *nodes) ConnectControl(ctx context.Context) error { return joined(n.connect(ctx, controlOf)) }

// ConnectVerbs connects the links for verbs to all nodes, and keeps them so.
func (n *nodes) ConnectVerbs(ctx context.Context) error { return joined(n.connect(ctx, verbsOf)) }

// Disconnect ends the connections to the nodes, and waits until they have ended.
func (n *nodes) Disconnect() {
	close(n.cut)
	n.keepers.Wait()
}

// bye tells the nodes that the process goes, so that they do not wait for it.
func (n *nodes) bye() {
	_ = n.each(all, 200*time.Millisecond, func(int) *Message { return &Message{Do: DoBye} }, nil)
}

// each sends a message to the nodes that want says, at once, and takes their answers. It returns
// their failures. It waits for the slowest of them, for as long as within: see transport.Ask. take
// is called by the caller's goroutine, in the nodes' order.
func (n *nodes) each(want func(node int) bool, within time.Duration, m func(node int) *Message,
	take func(node int, r Reply)) error {
	var group sync.WaitGroup
	errs := make([]error, len(n.links))
	replies := make([]Reply, len(n.links))
	asked := make([]bool, len(n.links))
	for i, l := range n.links {
		if asked[i] = want(i); !asked[i] {
			continue
		}
		group.Go(func() {
			r, err := l.ask(m(i), within)
			if err != nil {
				err = fmt.Errorf("node %d: %w", i, err)
			}
			replies[i], errs[i] = r, err
		})
	}
	group.Wait()
	for i, r := range replies {
		if asked[i] && errs[i] == nil && take != nil {
			take(i, r)
		}
	}
	return joined(errs)
}

// failures are those of several nodes, in one line.
type failures []error

// joined returns errs as one error; nil when there is none.
func joined(errs []error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return failures(errs)
}

func (f failures) Error() string {
	var texts []string
	for _, err := range f {
		if text := err.Error(); !slices.Contains(texts, text) { // a node's two links mostly fail alike
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "; ")
}

func (f failures) Unwrap() []error { return f }

// asker brings questions to the nodes' acceptors.
type asker struct{ f *Control }

// Ask implements membership.Transport. While the process closes, or gives identities back, a node
// is waited for no longer than worthWaiting says: it is not asked at all once it has been out of
// reach for that long. The time is read before the question is sent, so that the processes which
// the answer names were alive at some time behind it.
func (a asker) Ask(node int, q *membership.Question) (*membership.Answer, error) {
	l, within := a.f.links[node].control, transport.DeadAfter
	if a.f.closing.Load() || a.f.leaving.Load() > 0 {
		if within = a.f.worthWaiting(l); within <= 0 {
			return nil, fmt.Errorf("node %d is not waited for any more: %w", node, rdma.ErrNodeDown)
		}
	}
	asked := realtime.Now()
	r, err := a.f.links[node].ask(&Message{Do: DoRegistry, Pool: a.f.record.ID, Ask: q}, within)
	if err == nil && q.Kind == membership.KindPeekAll {
		a.f.hear(node, attendance{asked, r.Attached})
	}
	if err == nil && r.Answer == nil {
		err = fmt.Errorf("node %d answers nothing: %w", node, transport.ErrProtocol)
	}
	return r.Answer, err
}

// besideID begins the names of processes beside a node, as nodes know them: they are a part of the
// pool, and do not keep it in use.
const besideID = "beside "

// IsBeside reports whether a process of that name is beside a node.
func IsBeside(process string) bool { return strings.HasPrefix(process, besideID) }
