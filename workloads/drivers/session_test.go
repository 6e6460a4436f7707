package drivers

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
)

// failing is a store with operations, and a Close, that end as the test says.
type failing struct {
	client.Store
	ep      rdma.Endpoint
	answer  *error
	closing error
}

func (f *failing) Update(_, _ []byte) error {
	b := f.ep.Batch()
	defer b.Release()
	b.FetchAdd(rdma.At(0, 0), 1)
	return errors.Join(rdma.Do(f.ep, b, time.Second), *f.answer)
}

func (f *failing) Close() error { return f.closing }

// TestSession: a worker that was fenced off, or has a write of unknown outcome, goes on with
// another identity, and what it has posted altogether is counted. Where the old one cannot be
// closed it is fenced off.
func TestSession(t *testing.T) {
	f, err := fabrics.Create("mem:", fabrics.Geometry{Nodes: 1, Memory: 4096, Clients: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var answer, closing error
	kind := &stores.Kind{Open: func(ep rdma.Endpoint, _ stores.Options) (client.Store, error) {
		return &failing{ep: ep, answer: &answer, closing: closing}, nil
	}}
	s := &session{pool: &pool{fabric: f, kind: kind}, count: new(rdma.Counters)}
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	update := func(want error) {
		t.Helper()
		if err := s.Update(nil, nil); !errors.Is(err, want) {
			t.Errorf("update ends in %v, want %v", err, want)
		}
	}
	update(nil)
	if err := f.Revoke(s.ep.Client()); err != nil {
		t.Fatal(err)
	}
	update(rdma.ErrRevoked)
	update(nil)
	answer = client.ErrUncertain
	update(answer)
	answer, closing = nil, client.ErrUncertain
	update(nil)
	answer = client.ErrUncertain
	update(answer)
	answer, closing = nil, nil
	update(nil)
	if s.count.Atomics != 7 {
		t.Errorf("%d verbs were counted", s.count.Atomics)
	}
	if err := s.pool.door.Close(); err != nil { // they have left
		t.Error(err)
	}
	dead := 0
	for _, c := range f.Clients() {
		if !c.Alive && !c.Held {
			dead++
		}
	}
	if dead != 2 { // the one that was fenced off, and the one that could not be closed
		t.Errorf("%d clients wait for recovery: %+v", dead, f.Clients())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
