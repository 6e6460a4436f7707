package ops

import (
	"context"

	"github.com/farkv/farkv/client"
)

// Del removes a key that is there; otherwise the error wraps client.ErrNotFound.
func Del(ctx context.Context, addr string, key []byte) (*Pair, error) {
	return onKey("del", addr, key, func(db *client.DB, p *Pair) error {
		p.Action = "deleted"
		return db.Delete(ctx, key)
	})
}
