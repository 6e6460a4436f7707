package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/format"
)

// Pair is a key and what became of it.
type Pair struct {
	Pool   string
	Key    []byte
	Value  []byte // of a get
	Action string // "", "put" or "deleted"
	Raw    bool   // print the value as it is, without a newline behind it

	bytes int // of the value to put
}

// Get reads the value of a key.
func Get(ctx context.Context, addr string, key []byte) (*Pair, error) {
	return onKey("get", addr, key, func(db *client.DB, p *Pair) (err error) {
		p.Value, err = db.Get(ctx, key)
		return err
	})
}

// Put sets the value of a key, whether it is there or not.
func Put(ctx context.Context, addr string, key, value []byte) (*Pair, error) {
	return onKey("put", addr, key, func(db *client.DB, p *Pair) error {
		p.Action, p.bytes = "put", len(value)
		return db.Put(ctx, key, value)
	})
}

// Del removes a key that is there; otherwise the error wraps client.ErrNotFound.
func Del(ctx context.Context, addr string, key []byte) (*Pair, error) {
	return onKey("del", addr, key, func(db *client.DB, p *Pair) error {
		p.Action = "deleted"
		return db.Delete(ctx, key)
	})
}

// onKey runs f with the pool's store, as one short-lived client.
func onKey(what, addr string, key []byte, f func(db *client.DB, p *Pair) error) (*Pair, error) {
	pool, err := stores.Open(addr)
	if err != nil {
		return nil, Explain(err, addr)
	}
	p := &Pair{Pool: pool.Address, Key: key}
	db, err := pool.DB(stores.DBOptions{Name: "farkv", Workers: 1})
	if err == nil {
		err = f(db, p)
		if e := db.Close(); err == nil {
			err = e
		}
	}
	if err != nil {
		err = fmt.Errorf("%s %q in %s: %w", what, key, pool.Address, err)
		if l := limitsOf(pool); errors.Is(err, client.ErrTooLarge) && l != nil && len(key) > l.Key {
			return nil, fmt.Errorf("%w (hint: %s)", err, pool.Kind.KeyTooLarge(len(key)))
		}
		if errors.Is(err, client.ErrTooLarge) {
			return nil, fmt.Errorf("%w (hint: %s)", err, pool.Kind.TooLarge(len(key)+p.bytes))
		}
		return nil, ExplainAt(err, addr)
	}
	return p, nil
}

// MarshalJSON writes keys and values as texts where they are UTF-8, and otherwise in base64 as
// key_base64 and value_base64.
func (p *Pair) MarshalJSON() ([]byte, error) {
	m := map[string]any{"pool": p.Pool}
	format.AddText(m, "key", p.Key)
	if p.Action == "" {
		format.AddText(m, "value", p.Value)
	} else {
		m["done"] = p.Action
	}
	return json.Marshal(m)
}

// Print implements Result.
func (p *Pair) Print(w io.Writer) {
	switch {
	case p.Raw:
		w.Write(p.Value)
	case p.Action == "":
		fmt.Fprintf(w, "%s\n", p.Value)
	default:
		fmt.Fprintf(w, "%s %q in %s\n", p.Action, p.Key, p.Pool)
	}
}
