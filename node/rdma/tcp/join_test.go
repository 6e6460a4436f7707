package tcp_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
)

// slowStore is a registry of which a Look that has read may be held up.
type slowStore struct {
	membership.Store
	hold  atomic.Bool
	held  chan struct{} // has an entry for each Look that is held up
	loose chan struct{} // closed when they go on
	looks atomic.Int32
}

func (s *slowStore) Look(key, prefix string) (membership.Record, []membership.Record, error) {
	s.looks.Add(1)
	first, all, err := s.Store.Look(key, prefix)
	if s.hold.CompareAndSwap(true, false) {
		s.held <- struct{}{}
		<-s.loose
	}
	return first, all, err
}

// TestJoinTogether: workers that join while another one reads the view share one read, which begins
// behind their call.
func TestJoinTogether(t *testing.T) {
	t.Parallel()
	const workers = 32
	s := &slowStore{Store: membership.Memory(), held: make(chan struct{}, 1), loose: make(chan struct{})}
	_, addrs := start(t, 1, 1<<20, nil)
	f := created(t, control.Options{Addresses: addrs, Registry: s, RegistryName: "memory"},
		control.Geometry{Nodes: 1, Memory: 1 << 20, Clients: workers + 1})
	first := attach(t, f, "first")
	var all []rdma.Endpoint
	for range workers {
		all = append(all, attach(t, f, "worker"))
	}
	var group sync.WaitGroup
	join := func(ep rdma.Endpoint, want uint64) {
		if v, err := ep.Join(); err != nil || v.Epoch != want {
			t.Errorf("joined epoch %d, want %d: %v", v.Epoch, want, err)
		}
	}
	was := f.View()
	s.hold.Store(true)
	group.Go(func() { join(first, was.Epoch) })
	<-s.held
	next := rdma.State{Epoch: was.Epoch + 1, Busy: true}
	if ok, err := f.Advance(rdma.State{Epoch: was.Epoch}, next); !ok || err != nil {
		t.Fatal(ok, err)
	}
	s.looks.Store(0)
	for _, ep := range all {
		group.Go(func() { join(ep, next.Epoch) })
	}
	time.Sleep(100 * time.Millisecond) // they wait for the first one's read by then
	close(s.loose)
	group.Wait()
	if n := s.looks.Load(); n > workers/2 {
		t.Errorf("%d workers took %d reads of the view to join it", workers, n)
	}
}
