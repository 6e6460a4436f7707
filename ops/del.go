package ops

import (
	"context"

	"github.com/farkv/farkv/client"
)

// Del removes a key that is there; otherwise the error wraps client.ErrNotFound.
func Del(ctx context.Context, addr string, key []byte) (*Pair, error) {
	err := do("del", addr, key, func(db *client.DB) error { return db.Delete(ctx, key) })
	return &Pair{Pool: addr, Key: key, Action: "deleted"}, err
}
