package control

import (
	"context"
	"fmt"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
)

// closingStore is the Store of a pool's registry. Once the fabric closes it says so with each
// failure: tasks learn from it that they have to return, where they would wait for a registry that
// is out of reach. What succeeds is passed on, so that Close can still give identities back.
type closingStore struct {
	membership.Store
	f *nodes
}

// judge adds rdma.ErrClosed to a failure while the fabric closes. The store's error stays in it: a
// Swap of unknown outcome stays one.
func (s closingStore) judge(err error) error {
	if err != nil && s.f.closing.Load() {
		return fmt.Errorf("%w: %w", rdma.ErrClosed, err)
	}
	return err
}

// Load implements membership.Store, as the others do. Each asks the store also while the fabric
// closes.
func (s closingStore) Load(key string) ([]byte, uint64, error) {
	value, version, err := s.Store.Load(key)
	return value, version, s.judge(err)
}

func (s closingStore) Swap(key string, version uint64, value []byte) (bool, error) {
	ok, err := s.Store.Swap(key, version, value)
	return ok, s.judge(err)
}

func (s closingStore) Look(key, prefix string) (membership.Record, []membership.Record, error) {
	first, all, err := s.Store.Look(key, prefix)
	return first, all, s.judge(err)
}

// Await ends when the fabric closes, too: then its error wraps rdma.ErrClosed. The goroutine ends
// with the call.
func (s closingStore) Await(ctx context.Context, key string, version uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-s.f.stop:
		case <-ctx.Done():
		}
	}()
	return s.judge(s.Store.Await(ctx, key, version))
}
