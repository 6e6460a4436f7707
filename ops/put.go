package ops

import (
	"context"

	"github.com/farkv/farkv/client"
)

// Put sets the value of a key, whether it is there or not.
func Put(ctx context.Context, addr string, key, value []byte) (*Pair, error) {
	return onKey("put", addr, key, func(db *client.DB, p *Pair) error {
		p.Action, p.bytes = "put", len(value)
		return db.Put(ctx, key, value)
	})
}
