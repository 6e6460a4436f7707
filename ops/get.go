package ops

import (
	"context"

	"github.com/farkv/farkv/client"
)

// Get reads the value of a key.
func Get(ctx context.Context, addr string, key []byte) (*Pair, error) {
	p := &Pair{Pool: addr, Key: key}
	err := do("get", addr, key, func(db *client.DB) (err error) {
		p.Value, err = db.Get(ctx, key)
		return err
	})
	return p, err
}
