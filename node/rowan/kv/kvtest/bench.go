// Package kvtest is a bench for tests of a Rowan-KV server: a server of which only the worker runs,
// one step at a time, in memory that the test shares.
package kvtest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/shards"
)

// Worker is what the bench needs of a worker.
type Worker interface {
	Next(within time.Duration) (*rpc.Request, error)
	Begin(r *rpc.Request) error
	GoOn() error
	Close()
}

// Bench is a server of which the worker does what it is told, one thing at a time, and a client.
type Bench struct {
	T        testing.TB
	Fabric   *shm.Fabric
	Server   *state.Server
	Reads    *slowReads
	Endpoint rdma.Endpoint // the server's
	Worker   Worker
	Other    rdma.Endpoint // the client's
	Client   *rpc.Peer
}

// slowReads is the endpoint of a worker. While it holds READs they do not complete before they are
// let go.
type slowReads struct {
	*shm.Endpoint
	Hold bool
	held []*rdma.Batch
}

func (r *slowReads) Post(b *rdma.Batch) error {
	if !r.Hold || b.Step() != "look up" {
		return r.Endpoint.Post(b)
	}
	r.Posted(b)
	r.held = append(r.held, b)
	return nil
}

// Let lets all READs that are held be complete, and holds no more.
func (r *slowReads) Let(t testing.TB) {
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
	r.Hold, r.held = false, nil
}

// New returns a bench in a pool of one or two nodes, of which the server is beside the first one.
// open opens its worker.
func New[W Worker](t testing.TB, nodes int, k kv.Kind,
	open func(*state.Server, rdma.Endpoint, int) (W, error)) (*Bench, W) {
	o := kv.Options{
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
	b, w := &Bench{T: t, Fabric: f}, *new(W)
	ep, err := f.Open("worker")
	if err == nil {
		b.Server, err = state.New(ep, o, 0)
	}
	if err == nil {
		b.Reads = &slowReads{Endpoint: ep.(*shm.Endpoint)}
		b.Endpoint = b.Server.Member(b.Reads)
		b.Adopt(config.Commit())
		w, err = open(b.Server, b.Endpoint, 0)
		b.Worker = w
	}
	if err != nil {
		t.Fatal(err)
	}
	other, err := f.Open("client")
	b.Other = other
	if err == nil {
		b.Client, err = rpc.Open(other, rpc.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Client.Close()
		b.Worker.Close()
		other.Close()
		ep.Close()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return b, w
}

// Adopt has the server be in a term that was committed, without others.
func (b *Bench) Adopt(c *shards.Config) {
	t := state.NewTerm(c, b.Server.Node)
	for i, sh := range b.Server.Shards {
		if t.Leads(i) {
			sh.Gain(t.Term, 10)
			sh.Lead(uint32(t.Term), t.Node)
		}
	}
	b.Server.Known.Settle(t.Term)
	b.Server.Known.Adopt(t)
}

// Key returns one that the server is the primary of.
func (b *Bench) Key() (key []byte) {
	t := b.Server.Known.Last()
	for i := 0; key == nil || !t.Leads(t.Find(kv.Hash(key))); i++ {
		key = fmt.Appendf(nil, "key-%d", i)
	}
	return key
}

// Begin has the worker begin with a request, and no more.
func (b *Bench) Begin(proc uint16, value string) *rpc.Call {
	b.T.Helper()
	return b.BeginWith(b.Key(), proc, value)
}

// BeginWith is Begin with a request for a key.
func (b *Bench) BeginWith(key []byte, proc uint16, value string) *rpc.Call {
	b.T.Helper()
	q := kv.Request{Term: b.Server.Known.Last().Term, Key: key, Value: []byte(value)}
	return b.Start(b.Server.Opt.BoxOf(0, proc, kv.Hash(q.Key), 0), proc, q.Append(nil))
}

// Start has the worker begin with a request that came into a mailbox of its.
func (b *Bench) Start(to rdma.BoxAddr, proc uint16, body []byte) *rpc.Call {
	b.T.Helper()
	c, err := b.Client.Start(to, proc, time.Minute, body)
	if err != nil {
		b.T.Fatal(err)
	}
	for {
		r, err := b.Worker.Next(time.Minute)
		if err != nil {
			b.T.Fatal(err)
		}
		if r != nil {
			if err := b.Worker.Begin(r); err != nil {
				b.T.Fatal(err)
			}
			return c
		}
	}
}

// End has the worker go on until a call is answered.
func (b *Bench) End(c *rpc.Call, status uint16) {
	b.T.Helper()
	for !c.Over() {
		b.Worker.Next(0)
		if err := b.Worker.GoOn(); err != nil {
			b.T.Fatal(err)
		}
		b.Client.Next(0)
	}
	b.Worker.Next(0) // it notes that the answer is delivered
	if c.Err != nil || c.Status != status {
		b.T.Errorf("answer %d, %v, want %d", c.Status, c.Err, status)
	}
	c.Release()
}

// Damage flips a bit of a word of the entry of the bench's key, and returns where that is.
func (b *Bench) Damage(word uint64, bit int) (at uint64) {
	b.T.Helper()
	all := b.Server.Named(b.Key())
	if len(all) != 1 {
		b.T.Fatalf("entries at %v", all)
	}
	was, err := rdma.ReadWord(b.Endpoint, "read", all[0].Add(8*word), time.Minute)
	batch := b.Endpoint.Batch()
	defer batch.Release()
	batch.WriteWord(all[0].Add(8*word), was^1<<bit)
	if err = errors.Join(err, rdma.Do(b.Endpoint, batch, time.Minute)); err != nil {
		b.T.Fatal(err)
	}
	return all[0].Offset()
}

// Migrate returns a configuration in which the shard of a server's number migrates to the other
// one, and a key of it.
func (b *Bench) Migrate(from int) (moved *shards.Config, key []byte) {
	b.T.Helper()
	c, err := shards.New([]int{0, 1}, 4, 1)
	if err == nil {
		c, err = c.Move(shards.Move{Shard: from, From: from, To: 1 - from})
	}
	if err != nil {
		b.T.Fatal(err)
	}
	for i := 0; key == nil || c.Find(kv.Hash(key)) != from; i++ {
		key = fmt.Appendf(nil, "key-%d", i)
	}
	return c.Commit(), key
}
