package drivers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

func fieldNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("field%d", i)
	}
	return names
}

// foreign makes a runner.Database of an upstream driver.
type foreign struct {
	runner.NoPool
	ycsb.DB
	table   string
	fields  []string
	threads int
}

func newForeign(db ycsb.DB, s *workloads.Spec, threads int) *foreign {
	return &foreign{DB: db, table: s.Table, fields: fieldNames(s.FieldCount), threads: threads}
}

// Open implements runner.Database.
func (f *foreign) Open(worker int) (workloads.DB, error) {
	// Not the run's context: a cancelled operation would count as a failed one. Drivers have
	// timeouts of their own.
	ctx := f.DB.InitThread(context.Background(), worker, f.threads)
	return &foreignDB{foreign: f, ctx: ctx, values: make(map[string][]byte, len(f.fields))}, nil
}

// Read implements ycsb.DB. Upstream's drivers want the names of the fields, also of all. Some of
// them find nothing of a record that lacks one of these.
func (f *foreign) Read(ctx context.Context, table, key string, fields []string) (map[string][]byte, error) {
	if len(fields) > 0 {
		return f.DB.Read(ctx, table, key, fields)
	}
	row, err := f.DB.Read(ctx, table, key, f.fields)
	if err != nil || len(row) > 0 {
		return row, err
	}
	row = map[string][]byte{}
	for i := range f.fields {
		one, err := f.DB.Read(ctx, table, key, f.fields[i:i+1])
		if err != nil {
			return nil, err
		}
		maps.Copy(row, one)
	}
	return row, nil
}

// Scan implements ycsb.DB, like Read.
func (f *foreign) Scan(ctx context.Context, table, start string, n int, fields []string) ([]map[string][]byte, error) {
	if len(fields) == 0 {
		fields = f.fields
	}
	return f.DB.Scan(ctx, table, start, n, fields)
}

type foreignDB struct {
	*foreign
	ctx    context.Context
	values map[string][]byte
}

func (d *foreignDB) wanted(r *workloads.Record) []string {
	if r.Field == workloads.AllFields {
		return d.fields
	}
	return d.fields[r.Field : r.Field+1]
}

func (d *foreignDB) Read(key []byte, r *workloads.Record) error {
	row, err := d.DB.Read(d.ctx, d.table, string(key), d.wanted(r))
	if err != nil {
		return err
	}
	if len(row) == 0 { // how some drivers, redis among them, say that there is none
		return fmt.Errorf("read %s: %w", key, client.ErrNotFound)
	}
	d.point(row, r)
	return nil
}

func (d *foreignDB) point(row map[string][]byte, r *workloads.Record) {
	for i, name := range d.fields {
		r.Values[i] = row[name]
	}
}

func (d *foreignDB) named(r *workloads.Record) map[string][]byte {
	clear(d.values)
	for i, v := range r.Values {
		if r.Field == workloads.AllFields || r.Field == i {
			d.values[d.fields[i]] = v
		}
	}
	return d.values
}

func (d *foreignDB) Update(key []byte, r *workloads.Record) error {
	return d.DB.Update(d.ctx, d.table, string(key), d.named(r))
}

func (d *foreignDB) Insert(key []byte, r *workloads.Record) error {
	return d.DB.Insert(d.ctx, d.table, string(key), d.named(r))
}

func (d *foreignDB) Delete(key []byte) error { return d.DB.Delete(d.ctx, d.table, string(key)) }

func (d *foreignDB) Scan(start []byte, n int, r *workloads.Record, yield func()) error {
	rows, err := d.DB.Scan(d.ctx, d.table, string(start), n, d.wanted(r))
	for _, row := range rows {
		d.point(row, r)
		if yield != nil {
			yield()
		}
	}
	return err
}

func (d *foreignDB) Counters() *rdma.Counters { return nil }

func (d *foreignDB) Close() error {
	d.DB.CleanupThread(d.ctx)
	return nil
}

// native makes a ycsb.DB of a runner.Database of ours; a thread's connection is in its context.
type native struct {
	runner.Database
	fields []string
}

type threadKey struct{}

type thread struct {
	db  workloads.DB
	err error // why there is no db
}

func (n native) InitThread(ctx context.Context, id, _ int) context.Context {
	db, err := n.Open(id)
	return context.WithValue(ctx, threadKey{}, &thread{db, err})
}

func (n native) CleanupThread(ctx context.Context) {
	if t, ok := ctx.Value(threadKey{}).(*thread); ok && t.err == nil {
		t.db.Close()
	}
}

func connection(ctx context.Context) (workloads.DB, error) {
	t, ok := ctx.Value(threadKey{}).(*thread)
	if !ok {
		return nil, fmt.Errorf("thread was not initialized: %w", rdma.ErrClosed)
	}
	return t.db, t.err
}

func (n native) Read(ctx context.Context, _, key string, fields []string) (map[string][]byte, error) {
	db, err := connection(ctx)
	if err != nil {
		return nil, err
	}
	r := n.record()
	if err := db.Read([]byte(key), r); err != nil {
		return nil, err
	}
	return n.row(r, fields), nil
}

func (n native) record() *workloads.Record {
	return &workloads.Record{Field: workloads.AllFields, Values: make([][]byte, len(n.fields))}
}

// row copies what is wanted of r: the buffers are the store's.
func (n native) row(r *workloads.Record, fields []string) map[string][]byte {
	row := map[string][]byte{}
	for i, name := range n.fields {
		if v := r.Values[i]; v != nil && (len(fields) == 0 || slices.Contains(fields, name)) {
			row[name] = append([]byte{}, v...)
		}
	}
	return row
}

func (n native) Scan(ctx context.Context, _, start string, count int, fields []string) ([]map[string][]byte, error) {
	db, err := connection(ctx)
	if err != nil {
		return nil, err
	}
	var rows []map[string][]byte
	r := n.record()
	err = db.Scan([]byte(start), count, r, func() { rows = append(rows, n.row(r, fields)) })
	return rows, err
}

// given puts values into a record. A name that is no field of the record is an error.
func (n native) given(ctx context.Context, values map[string][]byte) (workloads.DB, *workloads.Record, error) {
	db, err := connection(ctx)
	if err != nil {
		return nil, nil, err
	}
	r := n.record()
	found := 0
	for i, name := range n.fields {
		if v, ok := values[name]; ok {
			r.Values[i] = v
			found++
		}
	}
	if found < len(values) {
		return nil, nil, fmt.Errorf("there are only field0 to field%d: %w", len(n.fields)-1, client.ErrNotFound)
	}
	return db, r, nil
}

func (n native) Insert(ctx context.Context, _, key string, values map[string][]byte) error {
	db, r, err := n.given(ctx, values)
	if err != nil {
		return err
	}
	return db.Insert([]byte(key), r)
}

// Update writes the fields given: all at once, or those of them that are there one by one.
func (n native) Update(ctx context.Context, _, key string, values map[string][]byte) error {
	db, r, err := n.given(ctx, values)
	if err != nil {
		return err
	}
	if len(values) == len(n.fields) {
		return db.Update([]byte(key), r)
	}
	for i, v := range r.Values {
		if r.Field = i; v != nil {
			if err := db.Update([]byte(key), r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n native) Delete(ctx context.Context, _, key string) error {
	db, err := connection(ctx)
	if err != nil {
		return err
	}
	return db.Delete([]byte(key))
}
