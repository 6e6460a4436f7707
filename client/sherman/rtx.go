package sherman

import (
	"errors"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/locations"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// rtxPool is a pool of objects of package rtx. It implements library.
type rtxPool struct {
	l *rtx.Layout
	// o are the options of workers, without the timeout.
	o rtx.Options

	// late: see known.
	late bool
}

// newRTXPool divides the memory of a pool. It sets p.Chunk to what a chunk takes.
func newRTXPool(p *Params, nodes int) (*rtxPool, error) {
	l, err := rtx.NewLayout(rtx.Shape{
		Nodes: nodes, Base: node.HeaderBytes, Memory: p.Memory, Clients: p.Clients, Roots: 1, Objects: p.Objects,
		Sizes: p.sizes(), Writes: mostWrites, Chunk: p.Chunk, Spare: p.Spare,
	})
	if err != nil {
		return nil, shapeError(err)
	}
	p.Chunk = l.Chunk
	return &rtxPool{l: l, o: rtx.Options{Drift: p.Lease}}, nil
}

// leaveOut implements library.
func (p *rtxPool) leaveOut(w Without) { p.late, p.o.Log = w&EarlyLocks != 0, w&LogElision != 0 }

// worker opens a worker of package rtx.
func (p *rtxPool) worker(ep rdma.Endpoint, timeout time.Duration) (*rtx.Worker, error) {
	o := p.o
	o.Timeout = timeout
	return rtx.Open(ep, p.l, o)
}

// prepare and the methods below it implement library.
func (p *rtxPool) prepare(f rdma.Fabric) error { return rtx.Prepare(f, p.l) }
func (p *rtxPool) describe(a rdma.Addr) string { return p.l.Describe(a) }
func (p *rtxPool) root() btree.Ref             { return btree.Ref(p.l.Root(0)) }
func (p *rtxPool) bytes() uint64               { return p.l.Buffers() }

// survey implements library.
func (p *rtxPool) survey(ep rdma.Endpoint, each time.Duration) (survey, error) {
	s, err := p.l.Survey(ep, each)
	metadata := client.Use{Name: "metadata", Count: s.Objects, Bytes: s.Objects * rtx.MetaBytes}
	return survey{sizes: p.l.Sizes, chunks: s.Chunks, most: s.MostChunks, uses: []client.Use{metadata}}, err
}

// peek implements library. Its two READs are of two moments: a buffer that is
// used for something else by then counts as none.
func (p *rtxPool) peek(ep rdma.Endpoint, r btree.Ref, timeout time.Duration) ([]byte, error) {
	at, ok := p.l.MetaAt(rtx.Ref(r))
	if !ok {
		return nil, nil
	}
	// First the metadata, then the buffer that its pointer names.
	b, err := rdma.ReadBytes(ep, stepPeek, at, rtx.MetaBytes, timeout)
	if err != nil {
		return nil, err
	}
	m := rtx.MetaOf(b)
	at, n, ok := p.l.Buffer(m.Pointer)
	if !ok {
		return nil, nil
	}
	if b, err = rdma.ReadBytes(ep, stepPeek, at, n, timeout); err != nil {
		return nil, err
	}
	// The header of the buffer says whether it is still this object's.
	if of, data, whole := p.l.Decode(b, m.Pointer); whole && of == rtx.Ref(r) {
		return data, nil
	}
	return nil, nil
}

// rtxRecoverer gives back what dead clients had. No client waits for that: each
// repairs what it meets.
type rtxRecoverer struct {
	recoverer
	w    *rtx.Worker
	view *kit.Member
}

// recoverer implements library.
func (p *rtxPool) recoverer(ep rdma.Endpoint, v *kit.Member, timeout time.Duration) (cluster.Recoverer, error) {
	w, err := p.worker(ep, timeout)
	if err != nil {
		return nil, err
	}
	return &rtxRecoverer{w: w, view: v}, nil
}

// Recover ends what a client has left that is fenced off: see rtx.Worker.Recover.
func (m *rtxRecoverer) Recover(v rdma.View, c rdma.ClientID) error {
	// No worker opens the pool with such an identity, so it has left nothing.
	if int(c) > m.w.Clients {
		return nil
	}
	m.view.Enter(v)
	return m.w.Recover(c)
}

// rtxObjects are objects of package rtx. The worker remembers the metadata of
// those that it has met last. It implements objects, and transaction for the one
// that runs.
type rtxObjects struct {
	known[rtx.Ref, rtx.Meta]
	w *rtx.Worker

	// These are what runs, and functions that are made once, so that operations
	// allocate nothing.
	f       func(tx transaction) error
	runTx   func(tx *rtx.Tx) error
	refs    []rtx.Ref
	take    func(i int, data []byte)
	guess   func(r rtx.Ref) (rtx.Meta, bool)
	takeRef func(i int, m rtx.Meta, data []byte, there bool)
}

// metaBytes is what an entry of the metadata that is remembered counts for: an
// object's name, and its metadata.
const metaBytes = 8 + rtx.MetaBytes

// open implements library.
func (p *rtxPool) open(ep rdma.Endpoint, timeout time.Duration, budget int) (objects, error) {
	w, err := p.worker(ep, timeout)
	if err != nil {
		return nil, err
	}
	o := &rtxObjects{w: w}
	o.late = p.late
	o.none, o.metas = rtx.ErrNoObject, locations.New[rtx.Meta](budget, metaBytes)
	o.runTx, o.guess, o.takeRef = o.runOne, o.find, o.takeOne
	return o, nil
}

// span and over implement objects.
func (o *rtxObjects) span()      { o.w.Span() }
func (o *rtxObjects) over() bool { return o.w.Over() }

// run implements objects. Afterwards it remembers what the last attempt has met,
// whether it has committed or not.
func (o *rtxObjects) run(f func(tx transaction) error) error {
	o.f = f
	err := o.w.Run(o.runTx)
	o.learnMet(o.w.Seen)
	return err
}

// runOne is an attempt. What an earlier attempt has met does not count any more.
func (o *rtxObjects) runOne(tx *rtx.Tx) error {
	o.begin(tx)
	return o.f(o)
}

// create implements transaction. It needs no room for later: an object's buffer
// is replaced as a whole.
func (o *rtxObjects) create(data []byte, _ int) (btree.Ref, error) {
	r, err := o.tx.(*rtx.Tx).New(data)
	if err == nil {
		// Once it is there its metadata is remembered, as that of objects that
		// were read.
		o.met = append(o.met, r)
	}
	return btree.Ref(r), err
}

// each implements objects. By what is remembered an object is read in one trip; if
// that is outdated, it takes the trips of one that is not remembered.
func (o *rtxObjects) each(refs []btree.Ref, take func(i int, data []byte)) error {
	o.refs, o.take = o.refs[:0], take
	for _, r := range refs {
		o.refs = append(o.refs, rtx.Ref(r))
	}
	return o.gone(o.w.Each(o.refs, o.guess, o.takeRef))
}

// takeOne takes an object that each has read.
func (o *rtxObjects) takeOne(i int, m rtx.Meta, data []byte, there bool) {
	o.learn(o.refs[i], m)
	if !there {
		data = nil
	}
	o.take(i, data)
}

// look implements objects.
func (o *rtxObjects) look(r btree.Ref) ([]byte, error) {
	data, err := o.w.Look(rtx.Ref(r))
	return data, o.gone(err)
}

// check implements objects. It counts chunks of dead clients as lost, so that a
// report shows what the master has to give back.
func (o *rtxObjects) check(r *client.Report, clients map[rdma.ClientID]bool) (audit, error) {
	u, err := o.w.Check(func(id rdma.ClientID) bool { return clients[id] })
	if errors.Is(err, client.ErrDamaged) {
		damaged(r, err)
		err = nil
	}
	// These locks are of clients that died before they committed, or of ones that
	// have not finished.
	if n := u.Held - u.Over; n > 0 {
		r.Waits("%d locks of transactions that did not end: a client that meets one releases it behind its lease", n)
	}
	// Their objects may have old data, or new, until a client meets one of them.
	if u.Unfinished > 0 {
		r.Waits("%d commits that were decided and are not finished", u.Unfinished)
	}
	if u.Lost > 0 {
		r.Waits("%d chunks of memory of clients that are gone", u.Lost)
	}
	return audit{objects: uint64(u.Objects), unfinished: u.Unfinished > 0, facts: []fact{
		{"buffers", u.Buffers}, {"buffers that are used", u.Named},
		{"locks of transactions that are over", u.Over}}}, err
}

func (o *rtxObjects) counts(to []telemetry.Counter) []telemetry.Counter { return o.w.Counts(to) }
func (o *rtxObjects) settle() error                                     { return nil } // locks are leased
func (o *rtxObjects) close() error                                      { return o.w.Close() }
