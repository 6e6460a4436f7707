package simulate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	logs "github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/server"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/workloads"
)

// Replicated describes calls of the servers of Rowan-KV, or of what it is measured against, in the
// evaluation of its paper (section 6.3): their logs are so long that nothing is digested or
// collected while they are measured.
type Replicated struct {
	Kind     kv.Kind
	Profile  string   // of the hardware, with persistent memory
	Hardware []string // as Config's, in figures of the profile as it is
	// Scale divides the machines: workers, the rates of NICs, links, PCIe and media, and the lines,
	// queues and interleaving of modules are so many times less. What a core spends on a message
	// stays. 0: 1.
	Scale    int
	Servers  int // one a node
	Workers  int // of a server; Scale divides them
	Replicas int
	Spec     *workloads.Spec // of keys and values
	Puts     int             // percent; the others are GETs, of keys that are chosen evenly
	Clients  int             // each with one operation in flight
	Keys     int             // of each worker: it has as many as any other, as it nearly does of 200 million
	// GatherFor is for how long Batch-KV waits for more entries. 0: as kv.Options.
	GatherFor time.Duration
	// Duration is measured, behind a WarmUp; both in virtual time.
	Duration, WarmUp time.Duration
	Seed             uint64
}

// Served is the result of Replicated.
type Served struct {
	Rate float64 // operations a second, of the machines as they were divided
	DLWA float64
	// Put and Get are latencies, in the order of the answers.
	Put, Get []time.Duration
	// Persist is how long entries took to be in a backup's memory: from when the worker posted them
	// to when it knew. RPC-KV has none, because there the backup's worker writes them.
	Persist []time.Duration
	// Media, NIC and Cores are for which share of the time the servers' busiest modules, NICs, and
	// workers worked; the waits of these for modules left out.
	Media, NIC, Cores float64
}

const (
	serverShards  = 48 // a server (section 6.1)
	servedSegment = 4 << 20
	servedAhead   = 512 // segments that others fill (section 4.3)
	callWithin    = 100 * time.Millisecond
)

// replicated is a run of Replicated.
type replicated struct {
	Replicated
	o       kv.Options
	config  *shards.Config
	pool    *sim.Sim
	running []*server.Server
	stop    atomic.Bool
	failed  error
	keys    [][]byte

	loaded, left  int
	from, until   time.Duration
	before, after *used
	posted        map[posting]time.Duration
	got           Served
}

// posting is a verb in flight.
type posting struct {
	client rdma.ClientID
	batch  uint64
	op     int
}

// used is what all servers have used until a time.
type used struct {
	at             time.Duration
	media, asked   uint64
	busy, nic, cpu time.Duration
}

// Run measures. An error is a workloads.UsageError when w makes no sense, or a server's or a
// client's. When ctx is cancelled it returns ctx's error.
func (w Replicated) Run(ctx context.Context) (*Served, error) {
	profile, err := sim.LookupProfile(w.Profile)
	if err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	w.Scale = max(1, w.Scale)
	if w.Workers /= w.Scale; profile.PMem.DIMMs == 0 || w.Workers < 1 || w.Clients < 1 || w.Keys < 1 || w.Servers < 1 ||
		w.Duration <= 0 || w.WarmUp <= 0 {
		return nil, workloads.Usagef("%d workers, %d clients with %d keys, %v behind %v on %s: want some of each, "+
			"and persistent memory", w.Workers, w.Clients, w.Keys, w.Duration, w.WarmUp, w.Profile)
	}
	r := &replicated{
		Replicated: w, left: w.Clients, running: make([]*server.Server, w.Servers),
		posted: make(map[posting]time.Duration),
	}
	var nodes []int
	for n := range w.Servers {
		nodes = append(nodes, n)
	}
	c, err := shards.New(nodes, serverShards, w.Replicas)
	if err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	r.config, r.keys = c.Commit(), make([][]byte, 0, w.Servers*w.Workers*w.Keys)
	r.o = kv.Options{
		Kind: w.Kind, Nodes: w.Servers, Shards: len(r.config.Shards), Workers: w.Workers, Slots: 256,
		PairBytes: w.Spec.PairBytes(), KeyBytes: w.Spec.KeyBytes(), Keys: 2 * cap(r.keys),
		Log: logs.Options{
			Ring: 1, Segments: 2 * servedAhead, SegmentBytes: servedSegment, Ahead: servedAhead, Reserve: 80, Secret: 1,
		},
		FullAfter: callWithin, GatherFor: w.GatherFor,
	}.WithDefaults()
	r.name()
	o := profile.Options(w.Seed, w.Servers)
	o.Memory, o.PMem, o.MTU, o.CountRings, o.Trace = r.o.Size(), &profile.PMem, 4096, true, r.persist
	if err := change(&o, w.Hardware); err != nil {
		return nil, err
	}
	r.divide(&o)
	if err := o.PMem.Check(); err != nil {
		return nil, workloads.Usagef("%v", err)
	}
	r.pool = sim.New(o)
	defer r.pool.Close()
	defer context.AfterFunc(ctx, func() { r.stop.Store(true) })()
	r.start()
	if err := errors.Join(r.pool.Run(), r.failed); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return r.result(), nil
}

// name finds keys.
func (r *replicated) name() {
	left := make(map[rdma.BoxAddr]int)
	for n := int64(0); len(r.keys) < cap(r.keys); n++ {
		key := r.Spec.Key(n)
		hash := kv.Hash(key)
		at := r.o.BoxOf(r.config.Shards[r.config.Find(hash)].Primary, kv.ProcUpdate, hash, 0)
		if left[at]++; left[at] <= r.Keys {
			r.keys = append(r.keys, key)
		}
	}
}

// divide divides machines by the scale.
func (r *replicated) divide(o *sim.Options) {
	n := float64(r.Scale)
	h, m := o.Hardware, o.PMem
	for _, rate := range []*float64{&h.ClientMops, &h.NodeMops, &h.PersistMops, &h.LinkGbps, &h.PCIeGbps, &h.AtomicMops,
		&m.WriteBandwidth, &m.ReadBandwidth} {
		*rate /= n
	}
	m.Lines, m.Combining, m.Queue, m.Interleave = m.Lines/r.Scale, m.Combining/r.Scale, m.Queue/r.Scale,
		m.Interleave/uint64(r.Scale)
	reachByCores(o)
}

// reachByCores has workers of nodes reach their memory by their cores. The profile's ServiceTime is
// the whole of an operation: here a request's answer, doorbell and completion are counted by
// themselves. A message of another server's worker takes what a completion does, which the paper
// does not say.
func reachByCores(o *sim.Options) {
	h := o.Hardware
	h.Direct, h.ServiceTime, h.PeerTime = true, h.ServiceTime-h.Doorbell-h.Verb-h.Poll, h.Poll
}

// Config is what servers and clients go by; it stays.
func (r *replicated) Config() (rdma.Config, error) {
	return rdma.Config{Version: 1, Data: r.config.Encode()}, nil
}

// still are registers with a constant value.
type still struct {
	rdma.Configs // none
	*replicated
}

func (s still) Config() (rdma.Config, error) { return s.replicated.Config() }

func (r *replicated) start() {
	for n := range r.Servers {
		r.pool.GoAt(n, fmt.Sprint("server ", n), func(ep rdma.Endpoint) {
			s, err := server.Open(ep, still{replicated: r}, r.o, n)
			if err == nil {
				r.running[n] = s
				err = s.Run(ep)
			}
			if !errors.Is(err, rdma.ErrClosed) {
				r.fail(fmt.Sprint("server ", n), err)
			}
		})
	}
	for i := range r.Clients {
		r.pool.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
			r.fail(fmt.Sprint("client ", i), r.call(ep, i))
			if r.left--; r.left > 0 {
				return
			}
			for _, s := range r.running {
				if s != nil {
					s.Stop()
				}
			}
		})
	}
}

func (r *replicated) fail(task string, err error) {
	if err != nil && r.failed == nil {
		r.failed = fmt.Errorf("%s: %w", task, err)
		r.stop.Store(true)
	}
}

// call inserts a share of the keys, and then reads and updates all until the time is over.
func (r *replicated) call(ep rdma.Endpoint, number int) error {
	peer, err := rpc.Open(ep, rpc.Options{Box: rdma.BoxOptions{Node: rdma.All, Slots: 4, Bytes: r.o.MessageBytes()}})
	if err != nil {
		return err
	}
	defer peer.Close()
	c := caller{replicated: r, ep: ep, peer: peer, turn: uint(ep.Client()), value: make([]byte, r.Spec.PairBytes())}
	for n := number; n < len(r.keys); n += r.Clients {
		if err := c.ask(kv.ProcInsert, r.keys[n]); err != nil {
			return err
		}
	}
	if r.loaded++; r.loaded == r.Clients {
		r.from = ep.Now() + r.WarmUp
		r.until = r.from + r.Duration
	}
	for rng := ep.Rand(); !r.stop.Load(); {
		began := ep.Now()
		if r.until == 0 {
			ep.Sleep(time.Microsecond) // until all keys are there
			continue
		}
		if began >= r.from && r.before == nil {
			r.before = r.use()
		}
		if began >= r.until {
			if r.after == nil {
				r.after = r.use()
			}
			return nil
		}
		proc, isPut := kv.ProcGet, rng.IntN(100) < r.Puts
		if isPut {
			proc = kv.ProcUpdate
		}
		if err := c.ask(proc, r.keys[rng.IntN(len(r.keys))]); err != nil {
			return err
		}
		switch took := ep.Now() - began; {
		case began+took < r.from || began+took >= r.until:
		case isPut:
			r.got.Put = append(r.got.Put, took)
		default:
			r.got.Get = append(r.got.Get, took)
		}
	}
	return nil
}

// caller is a client.
type caller struct {
	*replicated
	ep    rdma.Endpoint
	peer  *rpc.Peer
	turn  uint // of the next GET
	value []byte
	body  []byte
}

// ask sends a request to the primary of a key. It tries again when the primary is overloaded, or
// does not know the configuration yet.
func (c *caller) ask(proc uint16, key []byte) error {
	hash := kv.Hash(key)
	q := kv.Request{Term: c.config.Term, Key: key}
	if proc != kv.ProcGet {
		q.Value = c.value[:c.Spec.ValueBytes(key)]
	}
	c.body = q.Append(c.body[:0])
	c.turn++
	to := c.o.BoxOf(c.config.Shards[c.config.Find(hash)].Primary, proc, hash, c.turn)
	for until := c.ep.Now() + callWithin; ; c.ep.Sleep(20 * time.Microsecond) {
		answer, err := c.peer.Call(to, proc, callWithin, c.body)
		if errors.Is(err, rdma.ErrNoBox) && c.ep.Now() < until {
			continue
		}
		if err != nil {
			return err
		}
		status := answer.Status
		answer.Release()
		if status == kv.StatusOK {
			return nil
		}
		if status != kv.StatusWait && status != kv.StatusTerm || c.ep.Now() >= until {
			return fmt.Errorf("a request has status %d", status)
		}
	}
}

// persist times the verbs with answers that prove that entries are in a backup's memory: APPENDs,
// and the READs that are posted together with WRITEs, behind them.
func (r *replicated) persist(e sim.Event) {
	if e.Verb != rdma.Append && (e.Verb != rdma.Read || e.Step != kv.StepWrite) {
		return
	}
	switch id := (posting{e.Client, e.Batch, e.Op}); e.Kind {
	case sim.Post:
		r.posted[id] = e.At
	case sim.Complete:
		if r.before != nil && r.after == nil && e.Err == nil {
			r.got.Persist = append(r.got.Persist, e.At-r.posted[id])
		}
		delete(r.posted, id)
	}
}

func (r *replicated) use() *used {
	u := &used{at: r.pool.Now()}
	for n, machine := range r.pool.Usage()[:r.Servers] {
		d := r.pool.PMem(n)
		u.nic, u.cpu, u.busy = u.nic+machine.NIC, u.cpu+machine.CPU, u.busy+d.Busy()
		for _, m := range d.Counters() {
			u.media, u.asked = u.media+m.MediaWrites, u.asked+m.WriteRequests
		}
	}
	return u
}

func (r *replicated) result() *Served {
	s, from, to := &r.got, r.before, r.after
	took := float64(to.at-from.at) * float64(r.Servers)
	s.Rate = float64(len(s.Put)+len(s.Get)) / r.Duration.Seconds()
	if asked := to.asked - from.asked; asked > 0 {
		s.DLWA = float64(to.media-from.media) / float64(asked)
	}
	s.Media, s.NIC = float64(to.busy-from.busy)/took, float64(to.nic-from.nic)/took
	s.Cores = float64(to.cpu-from.cpu) / took / float64(r.Workers)
	return s
}
