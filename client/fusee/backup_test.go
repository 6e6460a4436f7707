package fusee

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// besides are keys by what a node has of them.
type besides struct {
	all    [][]byte
	beside [][]byte // the first replica of the pair, but not the primary of the slot
	slots  [][]byte // the primary of the slot
}

// sort sorts the keys of a pool by where they are, as a client knows that has cached them. It ends
// the test if the victim does not have keys of both kinds.
func (k *besides) sort(t *testing.T, c *Client, victim int) {
	t.Helper()
	if !k.find(t, c, victim) {
		t.Fatalf("of %d keys the node has %d slots and %d pairs: this test shows nothing",
			len(k.all), len(k.slots), len(k.beside))
	}
}

// find is sort; false: the victim does not have keys of both kinds.
func (k *besides) find(t *testing.T, c *Client, victim int) bool {
	t.Helper()
	k.beside, k.slots = nil, nil
	for _, key := range k.all {
		e := c.cache.Find(race.Hash(key))
		switch {
		case e == nil:
			t.Fatalf("%q is not cached", key)
		case c.s.Index.PlaceOf(e.slot())[0].Node == victim:
			k.slots = append(k.slots, key)
		case c.s.Space.UnitAt(e.word.Unit(), 0).Node() == victim:
			k.beside = append(k.beside, key)
		}
	}
	return len(k.beside) > 0 && len(k.slots) > 0
}

// latencies are what reads of some keys took.
type latencies struct{ took []time.Duration }

func (r *latencies) read(t *testing.T, c *Client, key []byte) {
	began := c.s.Now()
	v, err := c.Get(key)
	r.took = append(r.took, c.s.Now()-began)
	if err != nil || string(v) != string(key) {
		t.Errorf("got %q, %v, want %q", v, err, key)
	}
}

func (r *latencies) readAll(t *testing.T, c *Client, keys [][]byte) {
	for _, key := range keys {
		r.read(t, c, key)
	}
}

func (r *latencies) at(share float64) time.Duration {
	slices.Sort(r.took)
	return r.took[min(len(r.took)-1, int(share*float64(len(r.took))))]
}

func (r *latencies) String() string {
	return fmt.Sprintf("%d reads: p50 %v, p99 %v, worst %v", len(r.took), r.at(0.5), r.at(0.99), r.at(1))
}

// TestReadsBesideDeadNode: a node dies, or stops answering, and no master comes for many
// timeouts. Reads of pairs that it had go on as before if their slots are on other nodes. Reads
// of its slots wait for the master, and are answered as soon as one has come.
func TestReadsBesideDeadNode(t *testing.T) {
	const timeout = 20 * time.Millisecond
	for _, silent := range []bool{false, true} {
		for _, cache := range []int{0, 64 << 10} {
			t.Run(fmt.Sprintf("silent=%v,cache=%d", silent, cache), func(t *testing.T) {
				d := deadBeside{t: t, victim: 1, silent: silent, dies: time.Second, fenced: time.Second + 10*timeout}
				p := small(4, 2, 2)
				p.Timeout = timeout
				l, err := layout.New(p, 4, 1<<40)
				must(t, err)
				o := sim.Options{Nodes: 4, Memory: l.Bytes, Clients: p.Clients, Handler: node.Serve}
				if silent {
					o.Faults = sim.Faults{{Kind: sim.SlowFault, Node: d.victim,
						At: d.dies, For: 20 * timeout, Factor: 1e6}}
				}
				d.f = sim.New(o)
				t.Cleanup(func() { d.f.Close() })
				must(t, session.Make(d.f, p))
				d.f.Go("reader", func(ep rdma.Endpoint) {
					if err := d.run(ep, cache); err != nil {
						t.Error(err)
					}
				})
				must(t, d.f.Run())
				t.Logf("before: %v\nwhile it is dead: %v\nbehind: %v", &d.before, &d.during, &d.behind)
				if was, is := d.before.at(0.99), d.during.at(0.99); is > was+was/2 {
					t.Errorf("p99: got %v while a node is dead, want %v as before", is, was)
				}
				if worst := d.during.at(1); worst > timeout/silentShare+time.Millisecond {
					t.Errorf("the longest read took %v", worst)
				}
			})
		}
	}
}

// deadBeside is a run of TestReadsBesideDeadNode.
type deadBeside struct {
	t                      *testing.T
	f                      *sim.Sim
	victim                 int
	silent                 bool
	dies, fenced           time.Duration
	keys                   besides
	before, during, behind latencies
}

func (d *deadBeside) run(ep rdma.Endpoint, cache int) error {
	c, err := Open(ep, thrifty(Options{}))
	if err != nil {
		return err
	}
	for i := range 200 {
		d.keys.all = append(d.keys.all, key(i))
		if err := c.Insert(key(i), key(i)); err != nil {
			return err
		}
	}
	d.keys.sort(d.t, c, d.victim)
	if c, err = Open(ep, Options{CacheBytes: &cache}); err != nil {
		return err
	}
	for range 50 {
		d.before.readAll(d.t, c, d.keys.beside)
	}
	ep.Sleep(d.dies + time.Millisecond - ep.Now())
	if !d.silent {
		err = d.f.KillNode(d.victim)
	}
	for err == nil && ep.Now() < d.fenced {
		d.during.readAll(d.t, c, d.keys.beside)
	}
	if c.Stats().Backups == 0 {
		d.t.Error("no pair was read from a backup")
	}
	began := ep.Now()
	if _, e := c.Get(d.keys.slots[0]); !errors.Is(e, rdma.ErrTimeout) || ep.Now()-began < c.s.OpTimeout {
		d.t.Errorf("behind %v a slot whose primary is dead: got %v, want what waits for the fence", ep.Now()-began, e)
	}
	ep.Sleep(d.fenced + d.fenced - d.dies - ep.Now())
	err = errors.Join(err, d.f.KillNode(d.victim)) // the silent one, too
	master, e := d.f.Open("master")
	if err = errors.Join(err, e); err == nil {
		_, err = cluster.Once(master, d.f, recoverer, cluster.Options{Lease: time.Millisecond})
	}
	d.behind.readAll(d.t, c, d.keys.beside)
	d.behind.readAll(d.t, c, d.keys.slots)
	return err
}

// deaf is an endpoint that does not reach a node.
type deaf struct {
	rdma.Endpoint
	node int
}

func (d *deaf) Post(b *rdma.Batch) error {
	for i := range b.Len() {
		if op := b.Op(i); op.Addr.Node() == d.node {
			return &rdma.OpError{Verb: op.Verb, Addr: op.Addr, Len: op.Len(), Err: rdma.ErrNodeDown}
		}
	}
	return d.Endpoint.Post(b)
}

// TestUndecidedIsNotRead: the primary of a slot is out of a reader's reach, and all backups hold
// the word of a writer that is about to change the primary. Other clients still read the old value
// there. The reader does not read the new one.
func TestUndecidedIsNotRead(t *testing.T) {
	for _, cache := range []int{0, 64 << 10} {
		p := small(3, 2, 2)
		p.Timeout = 20 * time.Millisecond
		f := simPool(t, 3, p)
		d := &deaf{Endpoint: open2(t, f), node: -1}
		reader, err := Open(d, Options{CacheBytes: &cache})
		must(t, err)
		other, err := Open(open2(t, f), thrifty(Options{}))
		must(t, err)
		h := &beforeCAS{Endpoint: open2(t, f)}
		writer, err := Open(h, thrifty(Options{}))
		must(t, err)
		must(t, writer.Insert(k, []byte("old")))
		e := writer.cache.Find(race.Hash(k))
		primary := writer.s.Index.PlaceOf(e.slot())[0].Node
		_, err = reader.Get(k)
		must(t, err)
		met := false
		h.n, h.then = 2, func(*rdma.Batch) error {
			met = true
			d.node = primary
			for range 3 {
				v, err := reader.Get(k)
				if !errors.Is(err, session.ErrDeadline) {
					t.Errorf("cache of %d bytes: got %q, %v, want to wait for the primary's node", cache, v, err)
				}
				if v, err := other.Get(k); err != nil || string(v) != "old" {
					t.Errorf("got %q, %v, want the old value, which the primary holds", v, err)
				}
			}
			d.node = -1
			return nil
		}
		must(t, writer.Update(k, []byte("new")))
		if !met {
			t.Error("the writer changed no primary")
		}
		v, err := reader.Get(k)
		if err != nil || string(v) != "new" {
			t.Errorf("got %q, %v, want the new value", v, err)
		}
	}
}

// TestReadsBesideKilledNode is TestReadsBesideDeadNode in real time, over nodes of which one ends
// while their leases are long and no client is a candidate for the master.
func TestReadsBesideKilledNode(t *testing.T) {
	const nodes, workers, phase = 4, 8, 300 * time.Millisecond
	p := small(nodes, 2, 2)
	p.Timeout = 2 * time.Second
	l, err := layout.New(p, nodes, 1<<40)
	must(t, err)
	var all []*memnode.Node
	var addresses []string
	for range nodes {
		n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: l.Bytes, Handler: node.Serve})
		must(t, err)
		t.Cleanup(func() { n.Close() })
		all, addresses = append(all, n), append(addresses, n.Addr())
	}
	f, err := tcp.Create(control.Options{Addresses: addresses, Lease: 10 * time.Second},
		control.Geometry{Nodes: nodes, Memory: l.Bytes, Clients: p.Clients},
		func(f *tcp.Fabric) error { return session.Make(f, p) })
	must(t, err)
	t.Cleanup(func() { f.Close() })

	var keys besides
	for i := range 20 { // each with a block of its own, on some node
		loader, err := Open(open2(t, f), Options{})
		must(t, err)
		for k := range 25 {
			keys.all = append(keys.all, key(25*i+k))
			must(t, loader.Insert(key(25*i+k), key(25*i+k)))
		}
	}
	loader, err := Open(open2(t, f), Options{})
	must(t, err)
	for _, key := range keys.all {
		_, err := loader.Get(key)
		must(t, err)
	}
	victim := loader.s.Index.Place[0][0].Node // each subtable's primary may have no block
	if !keys.find(t, loader, victim) {
		victim = loader.s.Index.Place[1][0].Node
		keys.sort(t, loader, victim)
	}
	live := slices.DeleteFunc(slices.Clone(keys.all), func(key []byte) bool {
		return slices.ContainsFunc(keys.slots, func(dead []byte) bool { return string(dead) == string(key) })
	})

	var stop atomic.Bool
	var group sync.WaitGroup
	var turn atomic.Int32 // 0: before, 1: behind the death
	took := make([][2]latencies, workers)
	for w := range workers {
		c, err := Open(open2(t, f), thrifty(Options{}))
		must(t, err)
		group.Go(func() {
			for i := w; !stop.Load(); i++ {
				took[w][turn.Load()].read(t, c, live[i%len(live)])
			}
		})
	}
	time.Sleep(phase)
	turn.Store(1)
	all[victim].Close()
	time.Sleep(2 * phase)
	stop.Store(true)
	group.Wait()
	var sums [2]latencies
	for _, r := range took {
		for i := range sums {
			sums[i].took = append(sums[i].took, r[i].took...)
		}
	}
	t.Logf("in %v, while all nodes live: %v\nin %v, while one is dead, and in the view: %v",
		phase, &sums[0], 2*phase, &sums[1])
	began := time.Now()
	_, err = loader.Get(keys.slots[0])
	if took := time.Since(began); !errors.Is(err, rdma.ErrTimeout) || took < p.Timeout {
		t.Errorf("behind %v a slot whose primary is dead: got %v, want what waits for the fence", took, err)
	}
}
