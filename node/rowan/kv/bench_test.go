package kv

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/shards"
)

// migrate returns a configuration in which the shard of a server's number migrates to the other
// one, and a key of it.
func (b *bench) migrate(from int) (moved *shards.Config, key []byte) {
	b.t.Helper()
	c, err := shards.New([]int{0, 1}, 4, 1)
	if err == nil {
		c, err = c.Move(shards.Move{Shard: from, From: from, To: 1 - from})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	for i := 0; key == nil || c.Find(Hash(key)) != from; i++ {
		key = fmt.Appendf(nil, "key-%d", i)
	}
	return c.Commit(), key
}

// driven is what the bench needs of a worker.
type driven interface {
	next(within time.Duration) (*rpc.Request, error)
	begin(r *rpc.Request) error
	goOn() error
	close()
}

// bench is a server of which the worker does what it is told, one thing at a time, and a client.
type bench struct {
	t      testing.TB
	f      *shm.Fabric
	s      *state
	reads  *slowReads
	ep     rdma.Endpoint // the server's
	w      driven
	other  rdma.Endpoint // the client's
	client *rpc.Peer
}

// slowReads is the endpoint of a worker. While it holds READs they do not complete before they are
// let go.
type slowReads struct {
	*shm.Endpoint
	hold bool
	held []*rdma.Batch
}

func (r *slowReads) Post(b *rdma.Batch) error {
	if !r.hold || b.Step() != "look up" {
		return r.Endpoint.Post(b)
	}
	r.Posted(b)
	r.held = append(r.held, b)
	return nil
}

// let lets all READs that are held be complete, and holds no more.
func (r *slowReads) let(t testing.TB) {
	for _, b := range r.held {
		c := r.Batch()
		for i := range b.Len() {
			c.Read(b.Op(i).Addr, len(b.Op(i).Buf))
		}
		if err := r.Endpoint.Post(c); err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() {
			copy(b.Op(i).Buf, c.Op(i).Buf)
		}
		b.CompleteAll()
	}
	r.hold, r.held = false, nil
}

// newBench returns a bench in a pool of one or two nodes, of which the server is beside the first one.
// open opens its worker.
func newBench[W driven](t testing.TB, nodes int, k Kind, open func(*state, rdma.Endpoint, int) (W, error)) (*bench, W) {
	o := Options{
		Kind: k, Nodes: nodes, Workers: 1, Cleaners: 2, PairBytes: 1000, FullAfter: time.Minute,
		Log: rowan.Options{Ring: 1, Segments: 40, SegmentBytes: 4096, Ahead: 14, Reserve: 5, Credit: 4 << 10,
			Secret: 1},
	}
	config, err := shards.New([]int{0, 1}[:nodes], 4, nodes)
	if err != nil {
		t.Fatal(err)
	}
	o.Shards = len(config.Shards)
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: o.Size(), Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.MTU = 256
	b, w := &bench{t: t, f: f}, *new(W)
	ep, err := f.Open("worker")
	if err == nil {
		b.s, err = newState(ep, o, 0)
	}
	if err == nil {
		b.reads = &slowReads{Endpoint: ep.(*shm.Endpoint)}
		b.ep = b.s.member(b.reads)
		b.adopt(config.Commit())
		w, err = open(b.s, b.ep, 0)
		b.w = w
	}
	if err != nil {
		t.Fatal(err)
	}
	other, err := f.Open("client")
	b.other = other
	if err == nil {
		b.client, err = rpc.Open(other, rpc.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.client.Close()
		b.w.close()
		other.Close()
		ep.Close()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, w
}

// adopt has the server be in a term that was committed, without others.
func (b *bench) adopt(c *shards.Config) {
	t := newTerm(c, b.s.node)
	for i, sh := range b.s.shards {
		if t.leads(i) {
			sh.gain(t.Term, 10)
			sh.lead()
		}
	}
	b.s.known.settle(t.Term)
	b.s.known.adopt(t)
}

// key returns one that the server is the primary of.
func (b *bench) key() (key []byte) {
	t := b.s.known.last()
	for i := 0; key == nil || !t.leads(t.Find(Hash(key))); i++ {
		key = fmt.Appendf(nil, "key-%d", i)
	}
	return key
}

// begin has the worker begin with a request, and no more.
func (b *bench) begin(proc uint16, value string) *rpc.Call {
	b.t.Helper()
	return b.beginWith(b.key(), proc, value)
}

func (b *bench) beginWith(key []byte, proc uint16, value string) *rpc.Call {
	b.t.Helper()
	q := Request{Term: b.s.known.last().Term, Key: key, Value: []byte(value)}
	return b.start(b.s.o.BoxOf(0, proc, Hash(q.Key), 0), proc, q.Append(nil))
}

// start has the worker begin with a request that came into a mailbox of its.
func (b *bench) start(to rdma.BoxAddr, proc uint16, body []byte) *rpc.Call {
	b.t.Helper()
	c, err := b.client.Start(to, proc, time.Minute, body)
	if err != nil {
		b.t.Fatal(err)
	}
	for {
		r, err := b.w.next(time.Minute)
		if err != nil {
			b.t.Fatal(err)
		}
		if r != nil {
			if err := b.w.begin(r); err != nil {
				b.t.Fatal(err)
			}
			return c
		}
	}
}

// end has the worker go on until a call is answered.
func (b *bench) end(c *rpc.Call, status uint16) {
	b.t.Helper()
	for !c.Over() {
		b.w.next(0)
		if err := b.w.goOn(); err != nil {
			b.t.Fatal(err)
		}
		b.client.Next(0)
	}
	b.w.next(0) // it notes that the answer is delivered
	if c.Err != nil || c.Status != status {
		b.t.Errorf("answer %d, %v, want %d", c.Status, c.Err, status)
	}
	c.Release()
}

// damage flips a bit of a word of the entry of the bench's key, and returns where that is.
func (b *bench) damage(word uint64, bit int) (at uint64) {
	b.t.Helper()
	all := b.s.named(b.key())
	if len(all) != 1 {
		b.t.Fatalf("entries at %v", all)
	}
	was, err := rdma.ReadWord(b.ep, "read", all[0].Add(8*word), time.Minute)
	batch := b.ep.Batch()
	defer batch.Release()
	batch.WriteWord(all[0].Add(8*word), was^1<<bit)
	if err = errors.Join(err, rdma.Do(b.ep, batch, time.Minute)); err != nil {
		b.t.Fatal(err)
	}
	return all[0].Offset()
}
