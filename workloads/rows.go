package workloads

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Rows is a DB over a store of plain keys and values: a record is one value. It allocates nothing
// in steady state.
type Rows struct {
	store  client.Store
	count  *rdma.Counters
	prefix int    // bytes of key that are the table's
	key    []byte // the table, then the record's key
	row    []byte
	values [][]byte
}

// NewRows returns a DB of records with so many fields. A table other than the default one is kept
// apart by a prefix of its keys. The counters are those of the store's endpoint; nil if there are
// none. Close closes the store.
func NewRows(s client.Store, count *rdma.Counters, table string, fields int) *Rows {
	r := &Rows{store: s, count: count, values: make([][]byte, fields)}
	r.key = append(r.key, tablePrefix(table)...)
	r.prefix = len(r.key)
	return r
}

// tablePrefix is what keys of a table begin with.
func tablePrefix(table string) string {
	if table == "" || table == "usertable" {
		return ""
	}
	return table + "/"
}

func (t *Rows) name(key []byte) []byte {
	if t.prefix == 0 {
		return key
	}
	t.key = append(t.key[:t.prefix], key...)
	return t.key
}

// Read implements DB.
func (t *Rows) Read(key []byte, r *Record) error {
	row, err := t.store.Get(t.name(key))
	if err != nil {
		return err
	}
	return decodeRow(row, r.Values)
}

// Update implements DB. One field of several is read first with the rest of its row: the store
// knows only whole values, and of two such updates at a time one may undo the other's field, as in
// any binding that does so.
func (t *Rows) Update(key []byte, r *Record) error {
	values := r.Values
	if r.Field != AllFields && len(t.values) > 1 {
		row, err := t.store.Get(t.name(key))
		if err != nil {
			return err
		}
		if err := decodeRow(row, t.values); err != nil {
			return err
		}
		t.values[r.Field] = r.Values[r.Field]
		values = t.values
	}
	t.row = appendRow(t.row[:0], values)
	return t.store.Update(t.name(key), t.row)
}

// insertTries bounds an Insert that meets the record on inserting and misses it on replacing.
const insertTries = 16

// Insert implements DB.
func (t *Rows) Insert(key []byte, r *Record) error {
	t.row = appendRow(t.row[:0], r.Values)
	name := t.name(key)
	for range insertTries {
		err := t.store.Insert(name, t.row)
		if !errors.Is(err, client.ErrExists) {
			return err
		}
		if err = t.store.Update(name, t.row); !errors.Is(err, client.ErrNotFound) {
			return err
		}
	}
	return fmt.Errorf("insert %s: others insert and delete it all the time: %w", key, client.ErrUncertain)
}

// Delete implements DB.
func (t *Rows) Delete(key []byte) error { return t.store.Delete(t.name(key)) }

// Scan implements DB.
func (t *Rows) Scan(start []byte, n int, r *Record, yield func()) error {
	s, ok := t.store.(client.Scanner)
	if !ok {
		return ErrNoScan
	}
	var failed error
	err := s.Scan(t.name(start), n, func(_, row []byte) bool {
		failed = decodeRow(row, r.Values)
		if failed == nil && yield != nil {
			yield()
		}
		return failed == nil
	})
	if err != nil {
		return err
	}
	return failed
}

// Counters implements DB.
func (t *Rows) Counters() *rdma.Counters { return t.count }

// Collect implements Collector for stores that do.
func (t *Rows) Collect(p *telemetry.Process) {
	if c, ok := t.store.(Collector); ok {
		c.Collect(p)
	}
}

// Close implements DB.
func (t *Rows) Close() error { return t.store.Close() }
