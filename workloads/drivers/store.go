package drivers

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"syscall"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
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
	room   func() (folder string, free uint64, err error)
	afford func(addr string, bytes uint64) error
	start  func(name, store string, p stores.Params) error
	end    func(name string) error
}

var real = world{
	lookup: stores.Lookup, create: fabrics.Create, open: fabrics.Open, remove: fabrics.Remove, room: fabrics.Room,
	afford: fabrics.Afford, start: func(name, store string, p stores.Params) error {
		if StartNodes == nil {
			return fmt.Errorf("start memory nodes: %w", rdma.ErrNotSupported)
		}
		return StartNodes(name, store, p)
	},
	end: func(name string) error {
		if EndNodes == nil {
			return fmt.Errorf("end memory nodes: %w", rdma.ErrNotSupported)
		}
		return EndNodes(name)
	},
}

// StartNodes makes a pool of a name on memory nodes that it starts on this machine, for stores with
// servers beside them. EndNodes ends those of a name, and their pool. A program sets both that can;
// nil: this one cannot.
var (
	StartNodes func(name, store string, p stores.Params) error
	EndNodes   func(name string) error
)

type storeCreator struct {
	name string
	world
}

// pool is a store of ours on an open pool.
type pool struct {
	kind    *stores.Kind
	fabric  rdma.Fabric
	opts    stores.Options
	table   string
	fields  int
	addr    string
	name    string          // under which its nodes were started on this machine; "": they were not, by this process
	made    bool            // by this process
	servers *stores.Servers // of a pool that ends with this process; nil: others have them
	door    client.Reaper
	kept    Kept
	process stores.Process
}

// Create implements ycsb.DBCreator.
func (c storeCreator) Create(p *properties.Properties) (ycsb.DB, error) {
	spec, err := runner.ReadSpec(p)
	if err != nil {
		return nil, err
	}
	kind, err := c.lookup(c.name)
	if err != nil {
		return nil, err
	}
	o, err := parseOptions(p, kind, spec, p.GetInt("threadcount", 1))
	if err != nil {
		return nil, err
	}
	at, err := fabrics.Resolve(o.pool)
	if err != nil {
		return nil, err
	}
	if at != o.pool {
		o.started, o.pool = o.pool, at
	}
	command := p.GetString("command", Run)
	if spec.Scan > 0 && !kind.Scans && command != Shell {
		return nil, noScans(c.name)
	}
	if size := spec.PairBytes(); kind.MaxPair > 0 && size > kind.MaxPair && command != Shell {
		others := spec.Smaller()
		if names := stores.Taking(size); len(names) > 0 {
			others += ", or use a store that takes them: " + strings.Join(names, ", ")
		}
		return nil, workloads.Usagef("records of %d bytes: %s takes up to %d, key and value together: %s", size, c.name,
			kind.MaxPair, others)
	}
	db := &pool{kind: kind, opts: o.opts, table: spec.Table, fields: spec.FieldCount, addr: o.pool}
	if err = c.attach(db, command, &o); err != nil {
		return nil, err
	}
	if err = db.begin(command, spec, &o); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return native{Database: db, fields: fieldNames(spec.FieldCount)}, nil
}

// attach opens the pool, or makes it.
func (c storeCreator) attach(db *pool, command string, o *options) (err error) {
	private := fabrics.Private(o.pool)
	if command == Run && private {
		return workloads.Usagef("farkv.pool=%s: a mem: pool ends with the process that loaded it; use shm:NAME for"+
			" load and run, or 'farkv bench', which does both", o.pool)
	}
	params := db.kind.Size(o.params)
	if command == Load || private { // before anything is dropped
		if err := o.fits(&params, db.kind); err != nil {
			return err
		}
	}
	if command == Load && o.dropData && !private {
		if err := c.drop(db, o); err != nil {
			return err
		}
	}
	if !private {
		db.fabric, err = c.open(o.pool)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, fabrics.ErrNoPool):
			return explain(err, o.pool, "open it")
		case command != Load:
			name := o.pool
			if db.kind.Serve != nil {
				name = cmp.Or(o.named, fabrics.UsualName)
			}
			return fmt.Errorf("%w: there is no pool %s: make it with 'go-ycsb load %s' and the same properties",
				ErrNotLoaded, name, c.name)
		}
		if db.kind.Serve != nil && !strings.Contains(o.named, ":") {
			return c.onNodes(db, o, params)
		}
		if err := c.roomy(o, params); err != nil {
			return err
		}
	}
	if !params.Overcommit {
		if err := c.afford(o.pool, params.Bytes()); err != nil {
			return fmt.Errorf("pool %s: %w: lower recordcount, farkv.memory or farkv.nodes, or set "+
				"farkv.overcommit=true", o.pool, err)
		}
	}
	return c.make(db, o, params)
}

// drop removes the pool. Nodes that load started for it end, too, if the new pool has nodes of its
// own, or needs none: else it is made on the same.
func (c storeCreator) drop(db *pool, o *options) error {
	if o.started == "" || db.kind.Serve == nil && o.named != "" {
		if err := c.remove(o.pool, false); err != nil && !errors.Is(err, fabrics.ErrNoPool) {
			return explain(err, o.pool, "drop it")
		}
		return nil
	}
	if err := c.end(o.started); err != nil {
		return err
	}
	o.pool = cmp.Or(o.named, fabrics.UsualPool())
	db.addr = o.pool
	return nil
}

// onNodes starts memory nodes on this machine and makes the pool on them. The store's servers run
// in the nodes.
func (c storeCreator) onNodes(db *pool, o *options, params stores.Params) (err error) {
	name := cmp.Or(o.named, fabrics.UsualName)
	if err := c.start(name, db.kind.Name, params); err != nil {
		return err
	}
	db.made, db.name = true, name
	if o.pool, err = fabrics.Resolve(name); err != nil {
		return err
	}
	db.addr = o.pool
	if db.fabric, err = c.open(o.pool); err != nil {
		return explain(err, o.pool, "open it")
	}
	return nil
}

// roomy tells early that the records alone will not fit into the folder of pools.
func (c storeCreator) roomy(o *options, params stores.Params) error {
	if strings.Contains(o.pool, ":") && !strings.HasPrefix(o.pool, "shm:") {
		return nil // memory nodes have theirs
	}
	folder, free, err := c.room()
	if need := o.least * uint64(params.DataReplicas); err == nil && need > free {
		return fmt.Errorf("pool %s: %d copies of the records take %s or more, and %s has %s free: make room "+
			"there, or lower recordcount or farkv.replicas", o.pool, params.DataReplicas, mebibytes(need+1<<20-1),
			folder, mebibytes(free))
	}
	return nil // what is wrong with the folder is said when the pool is made
}

func mebibytes(n uint64) string { return fmt.Sprintf("%d MiB", n>>20) }

// make makes the pool.
func (c storeCreator) make(db *pool, o *options, params stores.Params) (err error) {
	g := params.Geometry()
	db.fabric, err = c.create(o.pool, g, func(f rdma.Fabric) error { return db.kind.Make(f, params) })
	if db.made = err == nil; errors.Is(err, fabrics.ErrExists) {
		db.fabric, err = c.open(o.pool) // another process loads a part of the records and was first
	}
	what := fmt.Sprintf("make it with %d nodes of %s", g.Nodes, mebibytes(g.Memory))
	switch {
	case errors.Is(err, syscall.ENOSPC):
		folder, free, _ := c.room()
		return fmt.Errorf("pool %s: cannot %s: no space left in %s, which has %s free: make room there, or lower"+
			" farkv.memory or recordcount", o.pool, what, folder, mebibytes(free))
	case errors.Is(err, rdma.ErrFull) && !errors.As(err, new(syscall.Errno)):
		return workloads.Usagef("farkv.memory is too little for %d records: raise it, or leave it out",
			params.Records)
	case err != nil:
		return explain(err, o.pool, what)
	}
	if fabrics.Private(o.pool) {
		if db.servers, err = db.kind.Start(db.fabric); err != nil {
			return errors.Join(err, db.fabric.Close())
		}
	}
	return nil
}

// explain adds what a user can do about an error of a pool. What no state of the world would make
// right is a misuse.
func explain(err error, pool, what string) error {
	of := func(errs ...error) []error { return errs }
	return workloads.Explain(fmt.Errorf("pool %s: cannot %s: %w", pool, what, err), []workloads.Hint{
		{Of: of(fabrics.ErrAddress, fabrics.ErrNotBuilt, fabrics.ErrDevice),
			Instead: fmt.Sprintf("farkv.pool: %v", err), Misuse: true},
		{Of: of(stores.ErrParams), Misuse: true},
		{Of: of(fabrics.ErrInUse), Say: "wait for its clients, or use another farkv.pool"},
		{Of: of(fabrics.ErrFormat, node.ErrNoStore), Say: "use another farkv.pool, or remove it"},
		{Of: of(node.ErrOtherStore), Say: "use that store, another farkv.pool, or load with dropdata=true"},
		{Of: of(node.ErrOtherVersion),
			Say: "use the go-ycsb of the farkv that made it, another farkv.pool, or load with dropdata=true"},
		{Of: of(fabrics.ErrForeign),
			Say: "use another farkv.pool, or, if it is meant to be shared with other users, shared:NAME instead of " +
				"shm:NAME"},
		{Of: of(fs.ErrPermission), Unless: errors.Is(err, fabrics.ErrFolder),
			Say: "it belongs to another user: use another farkv.pool"},
		{Of: of(syscall.EFBIG),
			Say: "the folder's file system holds no such file: lower farkv.memory or recordcount"},
		{Of: of(rdma.ErrTimeout), Say: fmt.Sprintf("see 'farkv status %s': a node may be down, or not serve", pool)},
	})
}

// Open implements runner.Database.
func (d *pool) Open(worker int) (workloads.DB, error) {
	s, err := d.session(worker)
	if err != nil {
		return nil, err
	}
	return d.rows(s), nil
}

func (d *pool) session(worker int) (*session, error) {
	s := &session{pool: d, worker: worker, count: new(rdma.Counters)}
	if err := s.open(); err != nil {
		return nil, err
	}
	*s.count = *s.ep.Counters()
	return s, nil
}

func (d *pool) rows(s *session) workloads.DB {
	store := client.Store(s)
	if _, ok := s.store.(client.Scanner); ok {
		store = scanning{s}
	}
	return workloads.NewRows(store, s.count, d.table, d.fields)
}

// Close implements runner.Database. The pool stays.
func (d *pool) Close() error {
	err := d.door.Close()
	d.servers.Stop()
	return errors.Join(err, d.fabric.Close(), d.servers.Err())
}

// probes is how many of the records are looked up to tell whether a pool is loaded.
const probes = 16

// begin makes the process a candidate for the pool's master, once the pool is known to be of its
// store, and checks whether that is fit for the command. A pool of which a node died may have no
// other candidate, and answer nothing until then.
func (d *pool) begin(command string, s *workloads.Spec, o *options) (err error) {
	session, err := d.session(0)
	if err != nil {
		return explain(err, o.pool, "look into it")
	}
	db := d.rows(session)
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := stores.Keep(d.fabric, d.kind, cluster.Options{Log: d.kept.Note}); err != nil {
		return err
	}
	return d.check(command, s, o, session, db)
}

// check returns why the pool is not fit for the command.
func (d *pool) check(command string, s *workloads.Spec, o *options, session *session, db workloads.DB) error {
	if o.nodes > 0 && o.nodes != d.fabric.Nodes() {
		return workloads.Usagef("farkv.nodes=%d, but pool %s has %d: leave the property out, or load with "+
			"dropdata=true", o.nodes, o.pool, d.fabric.Nodes())
	}
	most, key, found, err := d.probe(s, session, db)
	if err != nil {
		return explain(err, o.pool, "look into it")
	}
	writes := command == Load || command == Run && s.Update+s.Insert+s.ReadModifyWrite > 0
	switch size := s.PairBytes(); {
	case writes && size > most:
		return workloads.Usagef("records of %d bytes: pool %s takes up to %d, key and value together: make it anew "+
			"with 'farkv up --pair-bytes %d' or 'go-ycsb load -p dropdata=true', or %s", size, o.pool, most, size,
			s.Smaller())
	case writes && s.KeyBytes() > key:
		return workloads.Usagef("keys of %d bytes: pool %s takes up to %d: make it anew with 'go-ycsb load -p "+
			"dropdata=true'", s.KeyBytes(), o.pool, key)
	case command == Load && found > 0 && found < probes:
		return workloads.Usagef("pool %s has some of the records already, perhaps of a load that was interrupted: load"+
			" others (insertstart), or start anew with -p dropdata=true", o.pool)
	case command == Load && found > 0:
		return workloads.Usagef("pool %s is loaded already: run it, load other records (insertstart), or start "+
			"anew with -p dropdata=true", o.pool)
	case command == Run && found == 0:
		return fmt.Errorf("%w: pool %s has none of the records: 'go-ycsb load %s' with the same properties",
			ErrNotLoaded, o.pool, d.kind.Name)
	}
	return nil
}

// probe looks for some of the records that are to be loaded, the first and the last among them, and
// counts those that are there. The pool takes pairs of most bytes, and keys of key.
func (d *pool) probe(s *workloads.Spec, session *session, db workloads.DB) (most, key, found int, err error) {
	most = d.kind.MostPair(session.store)
	if key, err = d.longestKey(session); err != nil {
		return most, key, 0, err
	}
	r := workloads.Record{Field: workloads.AllFields, Values: make([][]byte, s.FieldCount)}
	for i := range int64(probes) {
		n := s.InsertStart + (s.InsertCount-1)*i/(probes-1)
		switch err := db.Read(s.Key(n), &r); {
		case err == nil, errors.Is(err, client.ErrDamaged): // a row of other fields
			found++
		case !errors.Is(err, client.ErrNotFound):
			return most, key, found, err
		}
	}
	return most, key, found, nil
}

// longestKey is the most bytes of a key in the pool of a session, where its store has room for keys
// alone.
func (d *pool) longestKey(s *session) (int, error) {
	if d.kind.Limits == nil {
		return math.MaxInt, nil
	}
	h, err := node.ReadHeader(s.ep, d.fabric.Nodes())
	if err != nil {
		return 0, err
	}
	l, err := d.kind.Limits(h)
	return l.Key, err
}
