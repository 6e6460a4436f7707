package rowan_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rowan"
	"github.com/farkv/farkv/node/rdma"
	logs "github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/server"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/seeds"
)

const (
	servers  = 3
	mtu      = 256
	maxValue = 1400
)

// small are servers that soon use their segments again.
func small(k kv.Kind) kv.Options {
	return kv.Options{
		Kind: k, Nodes: servers, Shards: 12, Workers: 2, PairBytes: 1500, KeyBytes: 100, Keys: 1000,
		Log: logs.Options{
			Ring: 2, Segments: 36, SegmentBytes: 4096, Ahead: 22, Reserve: 10, Credit: 4096, Secret: 0x5eed,
		},
		CommitEvery: 300 * time.Microsecond, StepEvery: 30 * time.Microsecond, Slots: 16,
		FullAfter: 3 * time.Millisecond,
	}
}

// fixed is a configuration that stays.
type fixed struct {
	rdma.Configs // none
	data         []byte
}

func (f fixed) Config() (rdma.Config, error) { return rdma.Config{Version: 1, Data: f.data}, nil }

// newConfig returns the first configuration of a pool.
func newConfig(o kv.Options, members int) (*shards.Config, error) {
	var nodes []int
	for n := range members {
		nodes = append(nodes, n)
	}
	return shards.New(nodes, o.Shards/members, min(3, members))
}

// cluster is servers that run, and clients that record what they do.
type cluster struct {
	o         kv.Options
	config    *shards.Config
	registers rdma.Configs // where it is, if it may change
	running   []*server.Server
	recorders []*check.Recorder
	wrong     error
	damage    bool // bits flip in memory: otherwise no client is told of damage
	keys      int
	roll      int
	state     map[string][]byte // at the end, of all keys
}

// stop ends the servers.
func (c *cluster) stop() {
	for _, srv := range c.running {
		if srv != nil {
			srv.Stop()
		}
	}
}

// fit adds what remote logs need.
func fit(o kv.Options) kv.Options {
	if more := o.LeastAhead() - o.Log.Ahead; more > 0 {
		o.Log.Segments, o.Log.Ahead = o.Log.Segments+more, o.Log.Ahead+more
	}
	return o
}

func newCluster(o kv.Options) (*cluster, error) {
	o = fit(o)
	c, err := newConfig(o, o.Nodes)
	if err != nil {
		return nil, err
	}
	return &cluster{o: o, config: c.Commit(), running: make([]*server.Server, o.Nodes)}, nil
}

func (c *cluster) fail(format string, a ...any) {
	if c.wrong == nil {
		c.wrong = fmt.Errorf(format, a...)
	}
}

// configs are where the configuration is.
func (c *cluster) configs() rdma.Configs {
	if c.registers != nil {
		return c.registers
	}
	return fixed{data: c.config.Encode()}
}

// open returns a client.
func (c *cluster) open(ep rdma.Endpoint, timeout time.Duration) (client.Store, error) {
	return rowan.New(ep, c.configs(), rowan.Options{Servers: c.o, Timeout: timeout})
}

// plan is what a client does.
type plan struct {
	worker, ops, keys int
	first             int           // operations that the worker did before
	pause             time.Duration // the most between two
	over              func() bool   // reports whether the client is to end, whatever it is told; nil: it is not
	until             time.Duration // when it ends, if that is sooner; 0: it is not
	sizes             []int
	writes            int           // percent
	shift             time.Duration // after which other keys are hot; 0: none are
	// how many of the keys it is busy with at a time, and leaves as they are then; 0: all
	roll int
}

// key returns that of an operation.
func (p plan) key(rng *rand.Rand, n int, now time.Duration) int {
	if p.shift > 0 {
		return (int(now/p.shift)*7 + rng.IntN(1+rng.IntN(p.keys))) % p.keys
	}
	if p.roll == 0 {
		return rng.IntN(p.keys)
	}
	return max(0, n*p.keys/(p.ops+1)-rng.IntN(p.roll))
}

// play does random operations.
func (c *cluster) play(ep rdma.Endpoint, r *check.Recorder, p plan) {
	rng := ep.Rand()
	for n := 1; n <= p.ops && (p.until == 0 || ep.Now() < p.until); n++ {
		key := fmt.Appendf(nil, "key-%d", p.key(rng, n, ep.Now()))
		value := check.MakeValue(nil, p.worker, p.first+n, p.sizes[rng.IntN(len(p.sizes))])
		var err error
		switch i := rng.IntN(100); {
		case i >= p.writes:
			_, err = r.Get(key)
		case i < p.writes/3:
			err = r.Insert(key, value)
		case i < p.writes*3/4:
			err = r.Update(key, value)
		default:
			err = r.Delete(key)
		}
		if p.over != nil && p.over() {
			return
		}
		if p.pause > 0 {
			ep.Sleep(time.Duration(rng.Int64N(int64(p.pause))))
		}
		if errors.Is(err, rdma.ErrClosed) || errors.Is(err, rdma.ErrRevoked) {
			return
		}
		if errors.Is(err, rdma.ErrNodeDown) && c.registers == nil {
			return // no other one takes its place
		}
		if errors.Is(err, client.ErrDamaged) {
			if c.damage {
				continue
			}
			c.fail("client %d: %w", p.worker, err)
			return
		}
		if err != nil && !errors.Is(err, client.ErrNotFound) && !errors.Is(err, client.ErrExists) &&
			!errors.Is(err, client.ErrFull) && !errors.Is(err, client.ErrUncertain) &&
			!errors.Is(err, rdma.ErrTimeout) {
			c.fail("client %d: %w", p.worker, err)
			return
		}
	}
}

func (c *cluster) history() (h check.History) {
	for _, r := range c.recorders {
		h = append(h, r.History()...)
	}
	return h
}

// each runs a test of kinds of servers.
func each(t *testing.T, kinds []kv.Kind, test func(t *testing.T, k kv.Kind)) {
	for _, k := range kinds {
		t.Run(k.String(), func(t *testing.T) { test(t, k) })
	}
}

// eachSeed runs a test of seeds with each kind of servers: a sixth of those that Rowan-KV has with
// the others.
func eachSeed(t *testing.T, short, long int, test func(k kv.Kind, seed uint64) error) {
	each(t, kv.Kinds(), func(t *testing.T, k kv.Kind) {
		few := short
		if k != kv.Rowan {
			few = short / 6
		}
		first, n := chosen(few, long)
		for seed := first; seed < first+n; seed++ {
			if err := test(k, seed); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	})
}

// chosen are the seeds of the runs: $FARKV_SEED is the first of $FARKV_SEEDS, or the only one.
func chosen(short, long int) (first, n uint64) {
	if one, err := strconv.ParseUint(os.Getenv("FARKV_SEED"), 10, 64); err == nil {
		n, _ = strconv.ParseUint(os.Getenv("FARKV_SEEDS"), 10, 64)
		return one, max(n, 1)
	}
	if os.Getenv("FARKV_LONG") == "1" {
		return 0, uint64(long)
	}
	return 0, seeds.Few(uint64(short))
}
