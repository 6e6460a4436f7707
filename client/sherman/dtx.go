package sherman

import (
	"errors"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/locations"
	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// dtxPool is a pool of objects of package dtx. It implements library. An object
// keeps the room that it was made with. Nodes are of one size anyway, and each
// value beside a leaf has room for the longest one.
type dtxPool struct {
	l *dtx.Layout
	// late: see known; unlogged: see dtx.Options.
	late, unlogged bool
}

// leaveOut implements library.
func (p *dtxPool) leaveOut(w Without) { p.late, p.unlogged = w&EarlyLocks != 0, w&Logs != 0 }

// dtxSizes returns the sizes of objects, ascending: that of a node, and that of a
// value.
func dtxSizes(p *Params) []int {
	list := []int{p.NodeBytes - headerBytes}
	if p.ValueBytes > btree.Inline {
		list = append(list, p.besideBytes(p.ValueBytes))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// dtxLog bounds the bytes of log that a transaction takes: a split of all levels,
// and a value.
func dtxLog(p *Params) int {
	// All objects of the largest transaction but one are nodes.
	bodies := slices.Repeat([]int{p.NodeBytes - headerBytes}, mostWrites-1)
	return dtx.LogBytes(append(bodies, slices.Max(dtxSizes(p)))...)
}

// newDTXPool divides the memory of a pool. It sets p.Chunk to what a chunk takes.
func newDTXPool(p *Params, nodes int) (*dtxPool, error) {
	l, err := dtx.NewLayout(dtx.Shape{
		Nodes: nodes, Base: node.HeaderBytes, Memory: p.Memory, Clients: p.Clients, Roots: 1,
		RootBytes: p.NodeBytes - headerBytes,
		Sizes:     dtxSizes(p), Writes: mostWrites, Log: dtxLog(p), Chunk: p.Chunk,
	})
	if err != nil {
		return nil, shapeError(err)
	}
	p.Chunk = l.Chunk
	return &dtxPool{l: l}, nil
}

// prepare and the methods below it implement library.
func (p *dtxPool) prepare(f rdma.Fabric) error { return dtx.Prepare(f, p.l) }
func (p *dtxPool) describe(a rdma.Addr) string { return p.l.Describe(a) }
func (p *dtxPool) root() btree.Ref             { return btree.Ref(p.l.Root(0)) }
func (p *dtxPool) bytes() uint64               { return p.l.Places() }

// recoverer implements library.
func (p *dtxPool) recoverer(ep rdma.Endpoint, _ *kit.Member, timeout time.Duration) (cluster.Recoverer, error) {
	return dtx.NewRecoverer(ep, p.l, dtx.Options{Timeout: timeout})
}

// survey implements library.
func (p *dtxPool) survey(ep rdma.Endpoint, each time.Duration) (survey, error) {
	s, err := p.l.Survey(ep, each)
	return survey{sizes: p.l.Sizes, chunks: s.Chunks, most: s.MostChunks}, err
}

// peek implements library. An object has its version and its data in one place, so
// one READ sees whether they belong together.
func (p *dtxPool) peek(ep rdma.Endpoint, r btree.Ref, timeout time.Duration) ([]byte, error) {
	at, n, ok := p.l.ObjectAt(dtx.Ref(r))
	if !ok {
		return nil, nil
	}
	b, err := rdma.ReadBytes(ep, stepPeek, at, n, timeout)
	if err != nil {
		return nil, err
	}
	// An object that is locked, or torn, counts as one that changes: data is nil.
	_, data, _ := dtx.Decode(b, dtx.Ref(r))
	return data, nil
}

// dtxObjects are objects of package dtx. The worker remembers the version of
// those that it has met last. It implements objects, and transaction for the one
// that runs.
type dtxObjects struct {
	known[dtx.Ref, dtx.Version]
	w *dtx.Worker
	// turn is the node of the next object, modulo the number of nodes.
	turn int

	// These are what runs, and functions that are made once, so that operations
	// allocate nothing.
	f       func(tx transaction) error
	runTx   func(tx *dtx.Tx) error
	refs    []dtx.Ref
	take    func(i int, data []byte)
	takeRef func(i int, v dtx.Version, data []byte)
}

// versionBytes is what an entry of the versions that are remembered counts for:
// an object's name, and its version.
const versionBytes = 16

// open implements library.
func (p *dtxPool) open(ep rdma.Endpoint, timeout time.Duration, budget int) (objects, error) {
	w, err := dtx.Open(ep, p.l, dtx.Options{Timeout: timeout, Unlogged: p.unlogged})
	if err != nil {
		return nil, err
	}
	// Clients begin at different nodes, so trees that grow by several clients
	// spread over all.
	o := &dtxObjects{w: w, turn: int(ep.Client())}
	o.late = p.late
	o.none, o.metas = dtx.ErrNoObject, locations.New[dtx.Version](budget, versionBytes)
	o.runTx, o.takeRef = o.runOne, o.takeOne
	return o, nil
}

// span and over implement objects.
func (o *dtxObjects) span()      { o.w.Span() }
func (o *dtxObjects) over() bool { return o.w.Over() }

// run implements objects. Afterwards it remembers what the last attempt has met,
// whether it has committed or not.
func (o *dtxObjects) run(f func(tx transaction) error) error {
	o.f = f
	err := o.w.Run(o.runTx)
	o.learnMet(o.w.Seen)
	return err
}

// runOne is an attempt.
func (o *dtxObjects) runOne(tx *dtx.Tx) error {
	o.begin(tx)
	return o.f(o)
}

// create implements transaction. New objects go to the nodes in turn.
func (o *dtxObjects) create(data []byte, room int) (btree.Ref, error) {
	o.turn++
	tx := o.tx.(*dtx.Tx)
	r, err := tx.NewRoom(o.turn%o.w.Nodes, data, room)
	if err == nil {
		o.met = append(o.met, r)
	}
	return btree.Ref(r), err
}

// each implements objects.
func (o *dtxObjects) each(refs []btree.Ref, take func(i int, data []byte)) error {
	o.refs, o.take = o.refs[:0], take
	for _, r := range refs {
		o.refs = append(o.refs, dtx.Ref(r))
	}
	return o.gone(o.w.Each(o.refs, o.takeRef))
}

// takeOne takes an object that each has read.
func (o *dtxObjects) takeOne(i int, v dtx.Version, data []byte) {
	o.learn(o.refs[i], v)
	o.take(i, data)
}

// look implements objects.
func (o *dtxObjects) look(r btree.Ref) ([]byte, error) {
	data, err := o.w.Look(dtx.Ref(r))
	return data, o.gone(err)
}

// check implements objects. Chunks of a dead client that the pool lists are no
// damage: its recovery gives them back.
func (o *dtxObjects) check(r *client.Report, clients map[rdma.ClientID]bool) (audit, error) {
	u, err := o.w.Check(func(id rdma.ClientID) bool { _, known := clients[id]; return known })
	if errors.Is(err, client.ErrDamaged) {
		damaged(r, err)
		err = nil
	}
	// Their objects may have old data, or new: see audit.unfinished.
	if u.Waiting > 0 {
		r.Waits("%d locks of transactions that did not end: the master ends those of dead clients", u.Waiting)
	}
	if u.Lost > 0 {
		r.Damaged("%d chunks of memory are of clients that there are not", u.Lost)
	}
	return audit{objects: uint64(u.Objects), unfinished: u.Waiting > 0, facts: []fact{
		{"places", u.Places}, {"locks of transactions that are over", u.Held}}}, err
}

func (o *dtxObjects) counts(to []telemetry.Counter) []telemetry.Counter { return o.w.Counts(to) }
func (o *dtxObjects) settle() error                                     { return o.w.Settle() }
func (o *dtxObjects) close() error                                      { return o.w.Close() }
