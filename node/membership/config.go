package membership

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Config returns the store's configuration; version 0: none was written yet. The caller owns its
// Data.
func (b *Registry) Config() (rdma.Config, error) {
	r, _, err := load[configRecord](b, configKey)
	if err != nil {
		return rdma.Config{}, fmt.Errorf("configuration of the pool's store: %w", err)
	}
	return r.config(), nil
}

func (r *configRecord) config() rdma.Config { return rdma.Config{Version: r.Version, Data: r.Data} }

// SwapConfig replaces the store's configuration, as rdma.Configs says. It reports false if the
// configuration has another version than the given one. The error wraps rdma.ErrStale if a later
// tenure than r's has begun or is about to begin. Another error leaves open whether the
// configuration was replaced.
func (b *Registry) SwapConfig(r rdma.Role, version uint64, data []byte) (bool, error) {
	err := rdma.CheckConfig(data)
	ok := false
	if err == nil {
		ok, err = b.swapConfig(r.Epoch, version, data)
	}
	if err != nil {
		return false, fmt.Errorf("replace version %d of the store's configuration as master of epoch %d: %w", version,
			r.Epoch, err)
	}
	return ok, nil
}

// swapConfig replaces the configuration as the master of the given tenure. It checks tenure and
// version on the very record that its Swap replaces. So a Swap that arrives after claimConfig of a
// later tenure finds another version of the record, and has no effect.
func (b *Registry) swapConfig(tenure, version uint64, data []byte) (bool, error) {
	for range maxRestarts {
		c, at, err := load[configRecord](b, configKey)
		switch {
		case err != nil:
			return false, err
		case tenure == 0 || c.Tenure > tenure:
			return false, fmt.Errorf("the tenure of epoch %d has begun, or is about to: %w", c.Tenure, rdma.ErrStale)
		case c.Version != version:
			return false, nil
		}
		next := &configRecord{Tenure: tenure, Version: version + 1, Data: data}
		if ok, err := b.swap(configKey, at, next); ok || err != nil {
			return ok, err
		}
	}
	return false, fmt.Errorf("others changed it %d times meanwhile: %w", maxRestarts, ErrUnreachable)
}

// claimConfig makes sure that no tenure before the given one replaces the configuration any more.
// It comes before the tenure begins. A crash between the two, or another candidate that begins
// instead, takes nothing from the last owner: that tenure is over already.
func (b *Registry) claimConfig(tenure uint64) error {
	return edit(b, configKey, func(r *configRecord) (bool, error) {
		if r.Tenure >= tenure {
			return false, nil
		}
		r.Tenure = tenure
		return true, nil
	})
}

// AwaitConfig waits until the configuration has another version, as rdma.Configs says. The error
// wraps rdma.ErrTimeout after within.
func (b *Registry) AwaitConfig(version uint64, within time.Duration) (rdma.Config, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	// The loop ends with ctx. Each turn but the last sees a record in which only Tenure changed.
	for {
		r, at, err := load[configRecord](b, configKey)
		if err == nil && r.Version != version {
			return r.config(), nil
		}
		if err == nil {
			err = b.store.Await(ctx, configKey, at)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = rdma.ErrTimeout
		}
		if err != nil {
			return rdma.Config{}, fmt.Errorf("wait for a configuration behind version %d: %w", version, err)
		}
	}
}
