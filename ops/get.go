package ops

import (
	"context"

	"github.com/farkv/farkv/client"
)

// Get reads the value of a key.
func Get(ctx context.Context, addr string, key []byte) (*Pair, error) {
	return onKey("get", addr, key, func(db *client.DB, p *Pair) (err error) {
		p.Value, err = db.Get(ctx, key)
		return err
	})
}
