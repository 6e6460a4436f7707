package drivers

import (
	"errors"
	"fmt"
	"strings"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// world is where stores and pools come from; tests have one of their own.
type world struct {
	lookup func(name string) (*stores.Kind, error)
	create func(addr string, g fabrics.Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error)
	open   func(addr string) (rdma.Fabric, error)
	remove func(addr string, force bool) error
}

var real = world{lookup: stores.Lookup, create: fabrics.Create, open: fabrics.Open, remove: fabrics.Remove}

type storeCreator struct {
	name string
	world
}

// pool is a store of ours on an open pool.
type pool struct {
	kind   *stores.Kind
	fabric rdma.Fabric
	opts   stores.Options
	table  string
	fields int
}

// Create implements ycsb.DBCreator.
func (c storeCreator) Create(p *properties.Properties) (ycsb.DB, error) {
	spec, err := runner.ReadSpec(p)
	if err != nil {
		return nil, err
	}
	o, err := parseOptions(p, spec, p.GetInt("threadcount", 1))
	if err != nil {
		return nil, err
	}
	kind, err := c.lookup(c.name)
	if err != nil {
		return nil, err
	}
	command := p.GetString("command", Run)
	if spec.Scan > 0 && !kind.Scans && command != Shell {
		return nil, workloads.Misuse("%s has no scans: set scanproportion=0 (workload e scans)", c.name)
	}
	db := &pool{kind: kind, opts: o.opts, table: spec.Table, fields: spec.FieldCount}
	if db.fabric, err = c.attach(command, kind, &o); err != nil {
		return nil, err
	}
	if err = db.check(command, spec, &o); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return native{Database: db, fields: fieldNames(spec.FieldCount)}, nil
}

// attach opens the pool, or makes it.
func (c storeCreator) attach(command string, kind *stores.Kind, o *options) (rdma.Fabric, error) {
	private := strings.HasPrefix(o.pool, "mem:")
	if command == Run && private {
		return nil, workloads.Misuse("farkv.pool=%s: a mem: pool ends with the process that loaded it; use shm:NAME for"+
			" load and run, or 'farkv bench', which does both", o.pool)
	}
	params := kind.Size(o.params)
	if err := o.fits(params); command == Load && err != nil {
		return nil, err // before anything is dropped
	}
	if command == Load && o.dropData && !private {
		if err := c.remove(o.pool, false); err != nil && !errors.Is(err, fabrics.ErrNoPool) {
			return nil, explain(err, o.pool, "drop it")
		}
	}
	if !private {
		f, err := c.open(o.pool)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, fabrics.ErrNoPool):
			return nil, explain(err, o.pool, "open it")
		case command != Load:
			return nil, fmt.Errorf("%w: there is no pool %s: make it with 'go-ycsb load %s' and the same properties",
				ErrNotLoaded, o.pool, c.name)
		}
	}
	g := fabrics.Geometry{Nodes: params.Nodes, Memory: params.Memory, Clients: params.Clients}
	f, err := c.create(o.pool, g, func(f rdma.Fabric) error { return kind.Format(f, params) })
	if errors.Is(err, fabrics.ErrExists) {
		f, err = c.open(o.pool) // another process loads a part of the records and was first
	}
	switch what := fmt.Sprintf("make it with %d nodes of %d MiB", g.Nodes, g.Memory>>20); {
	case errors.Is(err, rdma.ErrFull):
		return nil, fmt.Errorf("pool %s: cannot %s: %w: lower farkv.memory, recordcount or farkv.replicas",
			o.pool, what, err)
	case err != nil:
		return nil, explain(err, o.pool, what)
	}
	return f, nil
}

// explain adds what a user can do about an error of a pool.
func explain(err error, pool, what string) error {
	switch {
	case errors.Is(err, fabrics.ErrAddress):
		return workloads.Misuse("farkv.pool: %v", err)
	case errors.Is(err, fabrics.ErrInUse):
		return workloads.Misuse("pool %s: cannot %s: %v: wait for its clients, or use another farkv.pool", pool, what, err)
	case errors.Is(err, fabrics.ErrFormat), errors.Is(err, node.ErrNoStore):
		return workloads.Misuse("pool %s: cannot %s: %v: use another farkv.pool, or remove it", pool, what, err)
	case errors.Is(err, node.ErrOtherStore):
		return workloads.Misuse("pool %s: %v: use that store, another farkv.pool, or load with dropdata=true", pool, err)
	}
	return fmt.Errorf("pool %s: cannot %s: %w", pool, what, err)
}

// Open implements runner.Database.
func (d *pool) Open(worker int) (workloads.DB, error) {
	ep, err := d.fabric.Open(fmt.Sprintf("go-ycsb %d", worker))
	if err != nil {
		return nil, err
	}
	s, err := d.kind.Open(ep, d.opts)
	if err != nil {
		return nil, errors.Join(err, ep.Close())
	}
	return &session{Rows: workloads.NewRows(s, ep.Counters(), d.table, d.fields), ep: ep}, nil
}

// Close implements runner.Database. The pool stays.
func (d *pool) Close() error { return d.fabric.Close() }

// session is a worker's store with the endpoint that it stands on.
type session struct {
	*workloads.Rows
	ep rdma.Endpoint
}

func (s *session) Close() error { return errors.Join(s.Rows.Close(), s.ep.Close()) }

// probes is how many of the records are looked up to tell whether a pool is loaded.
const probes = 16

// check tells whether the pool is fit for the command.
func (d *pool) check(command string, s *workloads.Spec, o *options) error {
	if o.nodes > 0 && o.nodes != d.fabric.Nodes() {
		return workloads.Misuse("farkv.nodes=%d, but pool %s has %d: leave the property out, or load with dropdata=true",
			o.nodes, o.pool, d.fabric.Nodes())
	}
	found, err := d.probe(s)
	if err != nil {
		return explain(err, o.pool, "look into it")
	}
	switch {
	case command == Load && found > 0:
		return workloads.Misuse("pool %s is loaded already: run it, load other records (insertstart), or start anew with"+
			" -p dropdata=true", o.pool)
	case command == Run && found == 0:
		return fmt.Errorf("%w: pool %s has none of the records: 'go-ycsb load %s' with the same properties",
			ErrNotLoaded, o.pool, d.kind.Name)
	}
	return nil
}

// probe looks for some of the records that are to be loaded, the first and the last among them, and counts those that
// are there.
func (d *pool) probe(s *workloads.Spec) (found int, err error) {
	db, err := d.Open(0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	r := workloads.Record{Field: workloads.AllFields, Values: make([][]byte, s.FieldCount)}
	for i := range int64(probes) {
		n := s.InsertStart + (s.InsertCount-1)*i/(probes-1)
		switch err := db.Read(s.Key(n), &r); {
		case err == nil, errors.Is(err, client.ErrDamaged): // a row of other fields
			found++
		case !errors.Is(err, client.ErrNotFound):
			return 0, err
		}
	}
	return found, nil
}
