package rdma

import (
	"fmt"
	"time"
)

// MaxConfig bounds a store's configuration in bytes: 48 shards with 3 replicas each take 2 KB, and
// each acceptor, and each look at it, holds all of it.
const MaxConfig = 64 << 10

// Config is what a store's master decides beyond the pool's view, such as which server has which
// shard (Rowan-KV 4.4). Only the store knows what it means.
type Config struct {
	Version uint64 // one more with each swap; 0: there is none yet
	Data    []byte // the caller's
}

// Configs keep a store's configuration where the pool's view is kept: it survives what the view
// survives. A crash at any point of a swap leaves the whole old configuration or the whole new one.
type Configs interface {
	// Config returns the configuration as it is now. The error wraps ErrUnreachable while it cannot
	// be read.
	Config() (Config, error)
	// SwapConfig replaces the configuration if it still has the given version; false: it has
	// another one. From when another tenure has begun none of an earlier one replaces it: then the
	// error wraps ErrStale, and the master gives its role up. Data of more than MaxConfig bytes is
	// refused with an error that wraps ErrMessageSize. Any other error leaves open whether it was
	// replaced, or will be, until another swap of this version has been tried.
	SwapConfig(r Role, version uint64, data []byte) (bool, error)
	// AwaitConfig returns the configuration as soon as it has another version than the given one.
	// After the given time the error wraps ErrTimeout; ErrClosed when the Fabric is closed.
	AwaitConfig(version uint64, within time.Duration) (Config, error)
}

// CheckConfig returns why data cannot be a configuration.
func CheckConfig(data []byte) error {
	if len(data) > MaxConfig {
		return fmt.Errorf("a configuration of %d bytes: at most %d: %w", len(data), MaxConfig, ErrMessageSize)
	}
	return nil
}
