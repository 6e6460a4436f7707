package ops

import (
	"context"

	"github.com/farkv/farkv/client"
)

// Put sets the value of a key, whether it is there or not.
func Put(ctx context.Context, addr string, key, value []byte) (*Pair, error) {
	err := do("put", addr, key, func(db *client.DB) error { return db.Put(ctx, key, value) })
	return &Pair{Pool: addr, Key: key, Action: "put"}, err
}
