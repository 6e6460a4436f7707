package ibverbs

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// Fabric is an open pool: that of package tcp, but that verbs go from device to device. It is safe
// for concurrent use.
type Fabric struct {
	*control.Pool
	// All endpoints share the device, its protection domain and its port.
	a   adapter
	lim limits // of a
	// o has no zero values any more, and a Depth that the device can do.
	o     Options
	stats stats
	// Close may be called again when tasks did not stop in time; the device is given up once.
	once sync.Once
}

// What the fabric can do beyond rdma.Fabric, and beyond that of package tcp.
var (
	_ rdma.Fabric         = (*Fabric)(nil)
	_ rdma.DeviceReporter = (*Fabric)(nil)
	_ rdma.DeviceWorker   = (*Endpoint)(nil)
	_ rdma.Messenger      = (*Endpoint)(nil)
)

// Options say how a process uses its device. Zero values mean defaults.
type Options struct {
	// Choice of the device; the default is one that reaches the pool.
	Choice Choice
	// Spin is for how long a worker looks for completions before it sleeps until the device tells
	// of one; default 20 us, less than it costs to be woken. Negative: not at all. The worker does
	// not give its processor away meanwhile.
	Spin time.Duration
	// Depth is how many work requests a queue pair holds; more wait in the worker. Default 128, and
	// what the device can do, down to the next power of two. It bounds a worker's memory, too: a
	// flight and a word for each place, for each node.
	Depth int
}

const (
	defaultSpin  = 20 * time.Microsecond
	defaultDepth = 128
)

// Stats count what workers asked of the device.
type Stats = rdma.DeviceStats

// stats are the fabric's counters. Workers add to them when they wait, and not with each verb, so
// that many workers do not contend for these words.
type stats struct{ posts, polls, waits, requests, completions, connects, guesses atomic.Uint64 }

// Stats returns what the workers of this Fabric did so far, as far as they have told: when they
// wait, and when they are closed.
func (f *Fabric) Stats() Stats {
	s := &f.stats
	return Stats{
		Posts: s.posts.Load(), Polls: s.polls.Load(), Waits: s.waits.Load(), Requests: s.requests.Load(),
		Completions: s.completions.Load(), Connects: s.connects.Load(), Guesses: s.guesses.Load(),
	}
}

// Untold returns what the worker did since it told its Fabric last. Only the worker may ask.
func (e *Endpoint) Untold() Stats { return e.did }

func (s *stats) add(d *Stats) {
	s.posts.Add(d.Posts)
	s.polls.Add(d.Polls)
	s.waits.Add(d.Waits)
	s.requests.Add(d.Requests)
	s.completions.Add(d.Completions)
	s.connects.Add(d.Connects)
	s.guesses.Add(d.Guesses)
	*d = Stats{}
}

// Port names the device and the port of it that verbs go through.
func (f *Fabric) Port() (device string, port int) { return f.a.at() }

// newFabric puts an adapter under a pool, and owns both.
//
// A worker's completion queue has room for the requests of all nodes and those of all ways
// together, Depth each, and for as many again of queue pairs that were dropped. A device with small
// queues bounds Depth by that.
func newFabric(p *control.Pool, a adapter, o Options) *Fabric {
	o.Spin = cmp.Or(o.Spin, defaultSpin)
	o.Depth = cmp.Or(o.Depth, defaultDepth)
	l := a.limits()
	o.Depth = max(1, min(o.Depth, l.depth, l.room/(2*(p.Nodes()+1))))
	o.Depth = 1 << (bits.Len(uint(o.Depth)) - 1) // a ring's places go on where their numbers, of 32 bits, begin anew
	return &Fabric{Pool: p, a: a, lim: l, o: o}
}

// Open returns an endpoint with an identity of its own. Its queue pairs are made when it first
// posts to a node. It does not ask the nodes for connections: an endpoint that never posts has
// none.
func (f *Fabric) Open(name string) (rdma.Endpoint, error) {
	return f.endpoint(f.Worker(name))
}

// Peek returns an endpoint without an identity: see rdma.Peeker.
func (f *Fabric) Peek(name string) (rdma.Endpoint, error) {
	ep, err := f.endpoint(f.Anonymous(name))
	if err != nil {
		return nil, err
	}
	return rdma.ReadOnly(ep), nil
}

// endpoint gives a worker verbs, unless there is none. It gives the identity back if the device has
// no queue for the worker.
func (f *Fabric) endpoint(w *control.Worker, err error) (rdma.Endpoint, error) {
	if err != nil {
		return nil, err
	}
	e, err := newEndpoint(f, w)
	if err != nil {
		return nil, fmt.Errorf("open client %d: %w", w.Client(), errors.Join(err, w.Close()))
	}
	return e, nil
}

// Tell returns an ordinary endpoint: a queue pair without an identity only READs.
func (f *Fabric) Tell(name string) (rdma.Endpoint, error) { return f.Open(name) }

// Close is control.Pool's, and gives up the device: tasks that did not stop in time use it yet, and
// it goes with the last one's endpoint. The error is that of tasks that did not stop, or of what
// could not be given back.
func (f *Fabric) Close() error {
	err := f.Pool.Close()
	f.once.Do(func() { err = errors.Join(err, f.a.close()) })
	return err
}
