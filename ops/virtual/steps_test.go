package virtual

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// named counts what endpoints post, and call for, by the names of steps.
type named map[rdma.Step]int

// endpoint returns ep with namedEndpoint's Post and calls.
func (n named) endpoint(ep rdma.Endpoint) rdma.Endpoint { return &namedEndpoint{ep, n} }

type namedEndpoint struct {
	rdma.Endpoint
	posts named
}

func (e *namedEndpoint) Post(b *rdma.Batch) error {
	e.posts[b.Step()]++
	return e.Endpoint.Post(b)
}

func (e *namedEndpoint) Call(node int, r *rdma.Request, within time.Duration) error {
	e.posts[r.Step]++
	return e.Endpoint.Call(node, r, within)
}

// Listen implements rdma.Messenger.
func (e *namedEndpoint) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	return rdma.Listen(e.Endpoint, o)
}

// SwapConfig implements cluster.Configurer for recoverers.
func (e *namedEndpoint) SwapConfig(version uint64, data []byte, what string) (bool, error) {
	return e.Endpoint.(cluster.Configurer).SwapConfig(version, data, what)
}

// namedFabric opens such endpoints.
type namedFabric struct {
	rdma.Fabric
	posts named
}

func (f namedFabric) Open(name string) (rdma.Endpoint, error) {
	ep, err := f.Fabric.Open(name)
	if err != nil {
		return nil, err
	}
	return f.posts.endpoint(ep), nil
}

// watched is a subject that counts all posts: of workers, of keepers and of checks.
func watched(k *stores.Kind) (*explore.Subject, named) {
	s, posts := subject(k, nil), named{}
	open, check, recoverer := s.OpenOn, s.Check, s.Recoverer
	s.OpenOn = func(f rdma.Fabric, ep rdma.Endpoint, cache bool) (client.Store, error) {
		return open(f, posts.endpoint(ep), cache)
	}
	if recoverer != nil {
		s.Recoverer = func(f rdma.Configs) cluster.NewRecoverer {
			return func(ep rdma.Endpoint) (cluster.Recoverer, error) { return recoverer(f)(posts.endpoint(ep)) }
		}
	}
	s.Check = func(f rdma.Fabric) (client.Report, error) {
		_, fills := k.Fill(namedFabric{f, posts})
		_, uses := k.Usage(namedFabric{f, posts})
		report, err := check(namedFabric{f, posts})
		return report, errors.Join(fills, uses, err)
	}
	return s, posts
}

// formatted returns a pool of the subject with as many replicas as it may have.
func formatted(t *testing.T, s *explore.Subject) *sim.Sim {
	t.Helper()
	replicas := s.Replicas[len(s.Replicas)-1]
	shape := explore.Shape{Nodes: max(replicas[0], replicas[1]), Index: replicas[0], Data: replicas[1]}
	memory, err := s.Memory(shape)
	if err != nil {
		t.Fatal(err)
	}
	f := sim.New(sim.Options{Nodes: shape.Nodes, Memory: memory, Clients: s.Clients, Handler: s.Handler})
	t.Cleanup(func() { f.Close() })
	if err := s.Format(f, shape); err != nil {
		t.Fatal(err)
	}
	return f
}

// exhaust fills a pool with pairs of one size, empties it, and fills it with others. No keeper
// sweeps it.
func exhaust(t *testing.T, k *stores.Kind, s *explore.Subject) {
	t.Helper()
	f := formatted(t, s)
	if s.Serve != nil {
		if _, err := s.Serve(f); err != nil {
			t.Fatal(err)
		}
	}
	shares := []int{1, 4}
	if slices.Contains(k.Steps, "wipe block") { // where small pairs do not make do with the room of large ones
		shares = []int{4, 1}
	}
	for _, share := range shares {
		f.Go("worker", func(ep rdma.Endpoint) {
			store, err := s.OpenOn(f, ep, true)
			if err != nil {
				t.Error(err)
				return
			}
			size, n := s.MaxValue/share, 0
			if !k.Slots { // its memory is to be full before its index
				size = k.MostPair(store)/share - exploredKey
			}
			for ; err == nil; n++ {
				err = store.Insert(fmt.Appendf(nil, "key-%d", n), make([]byte, size))
			}
			if !errors.Is(err, rdma.ErrFull) {
				t.Errorf("insert %d: %v", n, err)
			}
			for i := range n - 1 {
				if err := store.Delete(fmt.Appendf(nil, "key-%d", i)); err != nil {
					t.Errorf("delete %d: %v", i, err)
				}
			}
			if slices.Contains(k.Steps, "ask for a sweep") { // in a full bucket no memory is asked for
				for err = nil; err == nil; {
					if err = store.Insert([]byte("again"), nil); err == nil {
						err = store.Delete([]byte("again"))
					}
				}
				if !errors.Is(err, rdma.ErrFull) {
					t.Errorf("insert and delete a key: %v", err)
				}
			}
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := f.Run(); err != nil {
			t.Fatal(err)
		}
	}
}

// churn inserts and deletes pairs beside a keeper until objects of deleted ones are used again.
func churn(t *testing.T, s *explore.Subject, posts named) {
	t.Helper()
	f := formatted(t, s)
	const most = 5000 // pairs: there are fewer objects
	done := false
	f.Go("worker", func(ep rdma.Endpoint) {
		defer func() { done = true }()
		store, err := s.OpenOn(f, ep, true)
		for i := 0; err == nil && i < most && posts["claim objects"] == 0; i++ {
			if err = store.Insert(fmt.Appendf(nil, "key-%d", i), nil); err == nil {
				err = store.Delete(fmt.Appendf(nil, "key-%d", i))
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	f.Go("keeper", func(ep rdma.Endpoint) {
		err := cluster.Keep(ep, f, s.Recoverer(f), cluster.Options{Lease: time.Millisecond,
			Stop: func() bool { return done }})
		if err != nil {
			t.Error(err)
		}
	})
	if err := f.Run(); err != nil {
		t.Fatal(err)
	}
}

// TestSteps: each step of a store is posted by some client or keeper, or by a look at the pool, and
// nothing is posted under another name, or none.
func TestSteps(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	const most = 1000 // seeds; 20 to 600 are enough
	for _, name := range stores.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, err := stores.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			s, posts := watched(k)
			exhaust(t, k, s)
			if slices.Contains(k.Steps, "claim objects") {
				churn(t, s, posts)
			}
			lacks := k.Steps
			for seed := uint64(1); len(lacks) > 0 && seed <= most; seed++ {
				if f := s.Run(s.Draw(seed, explore.Limits{})); f != nil && !k.Baseline {
					t.Fatalf("seed %d: %v", seed, f)
				}
				lacks = slices.DeleteFunc(slices.Clone(lacks), func(s rdma.Step) bool { return posts[s] > 0 })
			}
			if len(lacks) > 0 {
				t.Errorf("no batch is posted as %q", lacks)
			}
			for _, step := range append(k.Steps, node.StepReadHeader) {
				delete(posts, step)
			}
			if len(posts) > 0 {
				t.Errorf("these are no steps of %s: %q", name, slices.Sorted(maps.Keys(posts)))
			}
		})
	}
}
