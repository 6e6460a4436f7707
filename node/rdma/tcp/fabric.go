package tcp

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
)

// Options say how a process uses a pool. Zero values mean defaults.
type Options struct {
	// Addresses are HOST:PORT of the pool's nodes, in their order, when it is made; of some of them
	// when it is opened.
	Addresses []string
	// Witnesses are nodes that hold nothing but have a voice, when it is made: a pool of two nodes
	// and a witness survives the death of one of them.
	Witnesses []string
	Security  Security
	// ID names the pool when it is made; "": a new one. When it is opened, it must be that; "":
	// whichever the nodes have.
	ID string
	// Board keeps the pool's board; nil: the nodes themselves do.
	Board membership.Store
	// BoardName names it in the pool's record, and Glance, unless nil, spares it questions: see
	// membership.Options.
	BoardName string
	Glance    func() (r membership.Record, since time.Duration, ok bool)
	// Self is the Process of an open Fabric that Inspect is to leave out of the count of processes;
	// "": all count.
	Self string
	// Fabric is what the pool's verbs go over: see Record. When it is opened, it must be that.
	Fabric string
	// MTU is how long a block of a ring's entry is, when the pool is made: 256 to 4096 bytes, and
	// 4096 by default.
	MTU int
	// Beside is the node of this process that is number BesideNode of the pool: what goes there
	// goes past the network. See beside.go. Nil: there is none.
	Beside     *Node
	BesideNode int
	// Lease of the nodes when the pool is made; default DefaultLease.
	Lease time.Duration
	// Seed is what the workers' generators derive from; 0: a random one.
	Seed uint64
}

// Local reports whether all nodes are processes of this machine, as far as their addresses tell.
func (f *Fabric) Local() bool {
	return !slices.ContainsFunc(f.record.Addresses, func(addr string) bool { return !onLoopback(addr) })
}

// Geometry is the shape of a pool.
type Geometry rdma.Geometry

// What the fabric can do beyond rdma.Fabric.
var (
	_ rdma.Fabric         = (*Fabric)(nil)
	_ rdma.Geometer       = (*Fabric)(nil)
	_ rdma.ClientLister   = (*Fabric)(nil)
	_ rdma.MasterReporter = (*Fabric)(nil)
	_ rdma.NodeMonitor    = (*Fabric)(nil)
	_ rdma.NodeGracer     = (*Fabric)(nil)
	_ rdma.ExpelChecker   = (*Fabric)(nil)
	_ rdma.CPUMeter       = (*Fabric)(nil)
	_ rdma.Perishable     = (*Fabric)(nil)
	_ rdma.Localizer      = (*Fabric)(nil)
	_ rdma.TenureAdviser  = (*Fabric)(nil)
	_ rdma.AccessReporter = (*Fabric)(nil)
	_ rdma.CloseNotifier  = (*Fabric)(nil)
	_ rdma.CarrierNamer   = (*Fabric)(nil)
	_ rdma.ProcessNamer   = (*Fabric)(nil)
	_ rdma.Peeker         = (*Fabric)(nil)
	_ rdma.Teller         = (*Fabric)(nil)
)

// Fabric is an open pool. It is safe for concurrent use.
type Fabric struct {
	name    string
	o       Options
	record  Record // that of no node in particular
	process string // names this Fabric among all that ever open the pool
	board   *membership.Board
	quorum  *membership.Quorum // nil when another service keeps the board
	links   []links            // by node, and then by witness

	readers  atomic.Uint64 // lives of client 0
	closing  atomic.Bool
	closeBy  atomic.Int64  // until when Close waits for nodes that are down, on realtime.Now; 0: it was not called
	leaving  atomic.Int32  // identities that are being given back
	stop     chan struct{} // closed when closing is set
	tasks    realtime.Tasks
	boxes    mailboxes
	meetings meetings
	ready    atomic.Int32  // workers that have answers and have not seen them yet: they are about to post
	cut      chan struct{} // closed when no connection is needed any more
	keepers  sync.WaitGroup
	once     sync.Once
	closed   error
	onClose  func() // see OnClose

	mu       sync.Mutex
	last     rdma.View // that was seen last
	expelled []bool    // nodes that serve no client any more, for sure
	downs    []atomic.Bool
	attended []attendance  // by node, what it said last of processes
	owed     []rdma.Client // identities to give back, once the board is in reach
}

// links are this process's connections to one node.
type links struct{ verbs, control *link }

// newFabric begins to connect to all nodes of a pool.
func newFabric(o Options, r Record) *Fabric {
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	n := r.Nodes
	f := &Fabric{
		name: cmp.Or(o.Fabric, "tcp") + ":" + strings.Join(r.Addresses[:n], ","), o: o, record: r, process: newID(),
		stop: make(chan struct{}), cut: make(chan struct{}), expelled: make([]bool, n), downs: make([]atomic.Bool, n),
		last: rdma.View{Members: make([]rdma.Member, n)}, boxes: mailboxes{by: map[uint32]*mailbox{}},
		meetings: meetings{by: map[uint32]*Meeting{}}, attended: make([]attendance, len(r.Addresses)),
	}
	if o.Beside != nil {
		f.process = besideID + f.process
	}
	for i, addr := range r.Addresses {
		h := hello{Purpose: forControl, Process: f.process, PID: pid, Pool: r.ID, Node: i}
		l := links{control: newLink(addr, o.Security, h, f.cut)}
		if i < n {
			h.Purpose = forVerbs
			l.verbs = newLink(addr, o.Security, h, f.cut)
			l.verbs.begun = func(s sending) { f.boxes.begun(s, i) }
			l.verbs.takes = func(h header, body []byte) error { return f.mail(i, h, body) }
			if r.Fabric != "" {
				l.verbs.every = r.Lease / 4
			} else if o.Beside != nil && i == o.BesideNode {
				l.verbs.beside = o.Beside
			}
		}
		f.links = append(f.links, l)
	}
	store := o.Board
	if store == nil {
		if f.quorum = membership.NewQuorum(r.voters(), asker{f}); f.ReadOnly() {
			f.quorum = membership.NewReader(r.voters(), asker{f})
		}
		store = f.quorum
	}
	f.board = membership.New(closingStore{store, f}, membership.Options{
		Nodes: n, Clients: r.Clients, Process: f.process, Machine: machine, PID: pid,
		Now: realtime.Now, Revoke: f.RevokeLife, Glance: o.Glance,
	})
	return f
}

// connect connects the links that which names to all nodes, at once, and keeps them so. It returns
// when all are connected or have failed for the first time, with the reasons.
func (f *Fabric) connect(ctx context.Context, which func(links) *link) []error {
	return f.call(ctx, which, nil, func() {})
}

// reach is connect that does not wait for nodes that are known to be silent, by their addresses,
// and not for long for others once a majority is there.
func (f *Fabric) reach(h *hurry, which func(links) *link, silent map[string]error) []error {
	return f.call(h, which, silent, func() {
		if f.hasMajority() {
			h.enough()
		}
	})
}

func (f *Fabric) call(ctx context.Context, which func(links) *link, silent map[string]error, connected func()) []error {
	errs := make([]error, len(f.links))
	var first sync.WaitGroup
	for i, all := range f.links {
		l := which(all)
		if l == nil {
			continue
		}
		if errs[i] = silent[l.addr]; errs[i] != nil {
			f.keepers.Go(func() { l.keep(false) })
			continue
		}
		first.Add(1)
		f.keepers.Go(func() {
			_, err := l.connect(ctx)
			if errs[i] = err; err == nil {
				connected()
			}
			first.Done()
			l.keep(err == nil)
		})
	}
	first.Wait()
	return errs
}

func controlOf(l links) *link { return l.control }
func verbsOf(l links) *link   { return l.verbs }

// Carrier returns what the pool's verbs go over, as in addresses.
func (f *Fabric) Carrier() string { return cmp.Or(f.o.Fabric, "tcp") }

// Process returns the name by which the pool's nodes know this process.
func (f *Fabric) Process() string { return f.process }

// Nodes returns the number of memory nodes.
func (f *Fabric) Nodes() int { return f.record.Nodes }

// Size returns the bytes of registered memory of each node that the store has.
func (f *Fabric) Size() uint64 { return f.record.Memory - f.record.Telemetry }

// Geometry returns the pool's shape.
func (f *Fabric) Geometry() rdma.Geometry {
	r := &f.record
	return rdma.Geometry{Nodes: r.Nodes, Memory: f.Size(), Clients: r.Clients, Telemetry: r.Telemetry}
}

// Record returns what the pool's nodes know of it.
func (f *Fabric) Record() Record { return f.record }

// Tenure is how long a master's lease of this pool should be: it costs some questions to the board
// to keep one.
func (f *Fabric) Tenure() time.Duration {
	if f.quorum == nil {
		return 2 * time.Second
	}
	return min(max(4*f.record.Lease, 400*time.Millisecond), membership.MaxLease)
}

// holds reports whether op touches nothing but registered memory.
func (f *Fabric) holds(op *rdma.Op) bool {
	off, n := op.Addr.Offset(), uint64(op.Len())
	return op.Verb >= rdma.Read && op.Verb <= rdma.FetchAdd && !(op.Verb.Atomic() && off%8 != 0) &&
		off <= f.record.Memory && n <= f.record.Memory-off &&
		!(op.Verb == rdma.Write && n > readerWrite && f.ReadOnly()) // nodes take no such frame from readers
}

// Open returns an endpoint with an identity of its own. A read-only process has no identity, and is
// client 0.
func (f *Fabric) Open(name string) (rdma.Endpoint, error) {
	e, err := f.open(name)
	if err != nil {
		return nil, fmt.Errorf("open %s as %s: %w", f.name, name, err)
	}
	return e, nil
}

func (f *Fabric) open(name string) (*Endpoint, error) {
	if f.closing.Load() {
		return nil, rdma.ErrClosed
	}
	f.giveBack()
	if f.ReadOnly() {
		return f.endpoint(f.reader())
	}
	c, err := f.board.Claim(name)
	if err != nil {
		return nil, err
	}
	return f.endpoint(c)
}

// Peek returns an endpoint without an identity, as those have that may only read.
func (f *Fabric) Peek(name string) (rdma.Endpoint, error) {
	e, err := f.PeekEndpoint()
	if err != nil {
		return nil, fmt.Errorf("open %s as %s: %w", f.name, name, err)
	}
	return rdma.ReadOnly(e), nil
}

// Tell returns an endpoint without an identity that may write behind the store's memory: see
// rdma.Teller.
func (f *Fabric) Tell(name string) (rdma.Endpoint, error) {
	e, err := f.PeekEndpoint()
	if err != nil {
		return nil, fmt.Errorf("open %s as %s: %w", f.name, name, err)
	}
	return rdma.ReadOnlyBelow(e, f.Size()), nil
}

// PeekEndpoint is Peek for a fabric that sends the READs itself.
func (f *Fabric) PeekEndpoint() (*Endpoint, error) {
	if f.closing.Load() {
		return nil, rdma.ErrClosed
	}
	return f.endpoint(f.reader())
}

// reader is client 0 with a life of its own, so that one that strays takes down no other.
func (f *Fabric) reader() rdma.Client { return rdma.Client{Life: f.readers.Add(1)} }

func (f *Fabric) endpoint(c rdma.Client) (*Endpoint, error) {
	v, err := f.view()
	if err != nil {
		return nil, errors.Join(err, f.release(c))
	}
	e := &Endpoint{
		fabric: f, client: c, joined: v.Epoch, lost: make([]error, f.record.Nodes),
		flying: make([]int, f.record.Nodes), wake: make(chan struct{}, 1), rights: rights{client: c.ID, life: c.Life},
		rand: rand.New(rand.NewPCG(f.o.Seed, c.Life<<16|uint64(c.ID))),
	}
	e.Init(nil)
	if f.record.Fabric == "" {
		e.Appending()
	}
	return e, nil
}

// ReadOnly reports whether this process may do nothing but read: it knows the read token alone.
func (f *Fabric) ReadOnly() bool {
	return len(f.o.Security.Token) == 0 && len(f.o.Security.ReadToken) > 0
}

// release gives an identity back. When the board is out of reach, the next Open or Close gives it
// back. No other process could, as long as this one lives.
func (f *Fabric) release(c rdma.Client) error {
	if c.ID == 0 {
		return nil
	}
	err := f.awaitMajority()
	if err == nil {
		f.leaving.Add(1)
		err = f.board.Release(c)
		f.leaving.Add(-1)
	}
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.owed = append(f.owed, c)
	}
	return err
}

// giveBack releases what could not be released before. Those that were fenced off or forgotten
// meanwhile it leaves alone.
func (f *Fabric) giveBack() {
	if !f.hasMajority() {
		return // to wait for it takes seconds
	}
	f.mu.Lock()
	owed := f.owed
	f.owed = nil
	f.mu.Unlock()
	for i, c := range owed {
		if f.release(c) != nil { // then the others cannot be, either
			f.mu.Lock()
			f.owed = append(f.owed, owed[i+1:]...)
			f.mu.Unlock()
			return
		}
	}
}

// hasMajority reports whether enough nodes are connected to keep the board, or another service
// keeps it.
func (f *Fabric) hasMajority() bool {
	up := 0
	for _, l := range f.links[:f.record.voters()] {
		if l.control.up() == nil {
			up++
		}
	}
	return f.quorum == nil || up > f.record.voters()/2
}

// awaitMajority waits until enough nodes are connected to keep the board. Those that have been out
// of reach for deadAfter it does not wait for, so that many endpoints that are closed without a
// majority wait once, altogether.
func (f *Fabric) awaitMajority() error {
	voters := f.record.voters()
	for !f.hasMajority() {
		hope := 0
		for _, l := range f.links[:voters] {
			if f.worthWaiting(l.control) > 0 {
				hope++
			}
		}
		if hope <= voters/2 {
			return fmt.Errorf("%d of %d nodes that have a voice are out of reach: %w", voters-hope,
				voters, rdma.ErrMinority)
		}
		time.Sleep(redialMin)
	}
	return nil
}

// worthWaiting returns for how long a client that leaves waits for an answer over a link. It is not
// positive for nodes that have been out of reach for long.
func (f *Fabric) worthWaiting(l *link) time.Duration {
	down, by := l.downFor(), time.Duration(f.closeBy.Load())
	switch {
	case down == 0:
		return deadAfter
	case by > 0:
		return min(deadAfter-down, by-realtime.Now())
	}
	return deadAfter - down
}

// leave ends an endpoint's life, and its tenure as master.
func (f *Fabric) leave(e *Endpoint) error {
	if err := f.release(e.client); err != nil {
		return fmt.Errorf("close client %d of %s: %w", e.client.ID, f.name, err)
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
func (f *Fabric) Close() error {
	if !f.closing.Swap(true) {
		f.closeBy.Store(int64(realtime.Now() + deadAfter))
		close(f.stop)
		f.rouse()
	}
	if err := f.tasks.Join(patience); err != nil {
		return fmt.Errorf("close %s: %w", f.name, err)
	}
	f.once.Do(func() {
		f.closed = f.giveAllBack()
		f.bye()
		close(f.cut)
		if f.quorum != nil {
			f.quorum.Close()
		}
		f.keepers.Wait()
		if f.onClose != nil {
			f.onClose()
		}
	})
	return f.closed
}

// OnClose has last called when the fabric is closed, behind its last use of anything, such as of
// Options.Board. It is called before others have the fabric.
func (f *Fabric) OnClose(last func()) { f.onClose = last }

// giveAllBack gives back what this process has of the board, or says what it has to leave.
func (f *Fabric) giveAllBack() error {
	err := f.board.Settle()
	f.giveBack()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.owed) > 0 {
		var left []string
		for _, c := range f.owed {
			left = append(left, fmt.Sprint(c.ID))
		}
		err = errors.Join(err, fmt.Errorf("clients %s were not given back: %w", strings.Join(left, ", "),
			rdma.ErrUnreachable))
	}
	if err != nil {
		return fmt.Errorf("close %s: %w", f.name, err)
	}
	return nil
}

// bye tells the nodes that the process goes, so that they do not wait for it.
func (f *Fabric) bye() {
	_ = f.each(all, 200*time.Millisecond, func(int) *message { return &message{Do: doBye} }, nil)
}

// each sends a message to the nodes that want says, at once, and takes their answers. It returns
// their failures.
func (f *Fabric) each(want func(node int) bool, within time.Duration, m func(node int) *message,
	take func(node int, r reply)) error {
	var group sync.WaitGroup
	errs := make([]error, len(f.links))
	replies := make([]reply, len(f.links))
	asked := make([]bool, len(f.links))
	for i, l := range f.links {
		if asked[i] = want(i); !asked[i] {
			continue
		}
		group.Go(func() {
			r, err := l.control.control(m(i), within)
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
type asker struct{ f *Fabric }

// Ask implements membership.Transport.
func (a asker) Ask(node int, q *membership.Question) (*membership.Answer, error) {
	l, within := a.f.links[node].control, deadAfter
	if a.f.closing.Load() || a.f.leaving.Load() > 0 {
		if within = a.f.worthWaiting(l); within <= 0 {
			return nil, fmt.Errorf("node %d is not waited for any more: %w", node, rdma.ErrNodeDown)
		}
	}
	asked := realtime.Now()
	r, err := l.control(&message{Do: doBoard, Pool: a.f.record.ID, Ask: q}, within)
	if err == nil && q.Kind == membership.KindPeekAll {
		a.f.hear(node, attendance{asked, r.Attached})
	}
	if err == nil && r.Answer == nil {
		err = fmt.Errorf("node %d answers nothing: %w", node, ErrProtocol)
	}
	return r.Answer, err
}
