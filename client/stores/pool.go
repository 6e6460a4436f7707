package stores

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Pool is an open pool and the store that it holds. It is safe for concurrent use.
type Pool struct {
	Address string // as fabrics.Parse writes it
	Kind    *Kind  // the store that the pool was made for
	Header  node.Header
	Fabric  rdma.Fabric
	servers *Servers // of a pool of this process; nil: others have them
	process Process
}

const page = 4096

// ErrParams is wrapped when a pool of the wanted shape cannot exist.
var ErrParams = errors.New("bad pool parameters")

// Create makes a pool for the named store and opens it. Errors wrap ErrUnknown, ErrParams,
// fabrics.ErrOvercommit, or what fabrics.Create returns.
func Create(addr, store string, p Params) (*Pool, error) {
	kind, err := Lookup(store)
	if err != nil {
		return nil, err
	}
	p = kind.Size(p)
	if err := p.Check(kind); err != nil {
		return nil, err
	}
	if !p.Overcommit {
		if err := fabrics.Afford(addr, p.Bytes()); err != nil {
			return nil, err
		}
	}
	g := p.Geometry()
	g.Store = store
	f, err := fabrics.Create(addr, g, func(f rdma.Fabric) error { return kind.Make(f, p) })
	if err != nil {
		return nil, err
	}
	pool, err := identify(addr, f)
	if err == nil && fabrics.Private(addr) {
		if pool.servers, err = kind.Start(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		pool.servers.Await()
	}
	return pool, err
}

// Bytes returns the memory of all nodes together, telemetry included. Size must have completed p.
func (p *Params) Bytes() uint64 { return uint64(p.Nodes) * (p.Memory + telemetry.Bytes(p.Telemetry)) }

// Geometry returns the shape of the pool. Size must have completed p.
func (p *Params) Geometry() fabrics.Geometry {
	return fabrics.Geometry{
		Nodes: p.Nodes, Memory: p.Memory, Clients: p.Clients + p.Servers, Telemetry: telemetry.Bytes(p.Telemetry),
		Addresses: p.Addresses,
		Fabric:    p.Fabric,
	}
}

// Make formats a pool that no client can open yet. It returns an error when the formatted pool does
// not take pairs of the size that p asks for. Errors wrap ErrParams, rdma.ErrFull or what Format
// returns.
func (k *Kind) Make(f rdma.Fabric, p Params) error {
	if err := k.servable(f); err != nil {
		return err
	}
	if err := k.Format(f, p); err != nil {
		return err
	}
	if err := telemetry.Format(f, p.Telemetry); err != nil {
		return err
	}
	return holds(k, f, p.PairBytes)
}

// holds returns an error if the pool does not take pairs of the given size.
func holds(kind *Kind, f rdma.Fabric, pair int) error {
	ep, err := f.Open("format")
	if err != nil {
		return err
	}
	s, err := kind.Open(ep, Options{Fabric: f})
	if err != nil {
		return errors.Join(err, ep.Close())
	}
	if most := kind.MostPair(s); pair > most {
		err = tooLarge(kind, pair, most)
	}
	return errors.Join(err, s.Close(), ep.Close())
}

func tooLarge(kind *Kind, pair, most int) error {
	return fmt.Errorf("%w: pairs of %d bytes: a %s pool of this shape takes up to %d, key and value together",
		ErrParams, pair, kind.Name, most)
}

// MostPair returns the most bytes that a key and its value may have together in the pool of a
// worker's store of this kind.
func (k *Kind) MostPair(s client.Store) int {
	if limited, ok := s.(interface{ MaxPair() int }); ok {
		return limited.MaxPair()
	}
	return cmp.Or(k.MaxPair, math.MaxInt)
}

// maxClients bounds the clients of a pool: the highest identities stand for owners of memory that
// are no clients.
const maxClients = int(node.OfNode) - 1

// Check returns an error when p is no pool of the store, and rounds the memory up to pages. The
// store's Size must have completed p before. Errors wrap ErrParams.
func (p *Params) Check(k *Kind) error {
	switch {
	case p.Nodes < 1 || p.Nodes > fabrics.MaxNodes:
		return fmt.Errorf("%w: %d memory nodes: want 1 to %d", ErrParams, p.Nodes, fabrics.MaxNodes)
	case p.Spares < 0 || p.Spares >= p.Nodes:
		return fmt.Errorf("%w: %d of %d memory nodes are spares: want one at least that is none", ErrParams,
			p.Spares, p.Nodes)
	case p.Telemetry > telemetry.MaxRecords:
		return fmt.Errorf("%w: telemetry of %d processes: want up to %d", ErrParams, p.Telemetry, telemetry.MaxRecords)
	case p.Clients < 1 || p.Clients+p.Servers > maxClients:
		return fmt.Errorf("%w: %d clients: want 1 to %d", ErrParams, p.Clients, maxClients-p.Servers)
	case p.Memory > fabrics.MaxMemory:
		return fmt.Errorf("%w: %d TiB a node: want up to %d", ErrParams, p.Memory>>40, uint64(fabrics.MaxMemory>>40))
	}
	for _, r := range []struct {
		name string
		n    int
	}{{"index ", p.IndexReplicas}, {"data ", p.DataReplicas}} {
		if r.n < 1 || r.n > p.Nodes-p.Spares {
			if !k.Split && p.IndexReplicas == p.DataReplicas {
				r.name = ""
			}
			return fmt.Errorf("%w: %d %sreplicas need as many memory nodes, and there are %d%s", ErrParams, r.n, r.name,
				p.Nodes-p.Spares, apart(p.Spares))
		}
	}
	if err := k.Heeds(p.Own); err != nil {
		return err
	}
	if k.MaxPair > 0 && p.PairBytes > k.MaxPair {
		return fmt.Errorf("%w: pairs of %d bytes (hint: %s)", ErrParams, p.PairBytes, k.limit(p.PairBytes))
	}
	if k.Refuse != nil {
		if err := k.Refuse(*p); err != nil {
			return fmt.Errorf("%w: a %s pool: %w", ErrParams, k.Name, err)
		}
	}
	if p.Memory == 0 {
		return fmt.Errorf("%w: no %s pool can be sized for %d records of %d bytes", ErrParams, k.Name, p.Records,
			p.PairBytes)
	}
	p.Memory = (p.Memory + page - 1) / page * page
	return nil
}

func apart(spares int) string {
	if spares == 0 {
		return ""
	}
	return ", spares apart"
}

// Open opens a pool, whichever store it holds. Errors wrap what fabrics.Resolve and fabrics.Open
// return, node.ErrNoStore, ErrUnknown when this program does not have the store, or
// node.ErrOtherVersion when it has another version of the store's format.
func Open(addr string) (*Pool, error) {
	addr, err := fabrics.Resolve(addr)
	if err != nil {
		return nil, err
	}
	f, err := fabrics.Open(addr)
	if err != nil {
		return nil, err
	}
	return identify(addr, f)
}

// identify reads which store f holds. It owns f.
func identify(addr string, f rdma.Fabric) (*Pool, error) {
	p, err := Of(addr, f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// Of returns the Pool of a fabric that is open at an address. On success Close of the result closes
// f; on an error the caller still has to. Errors wrap node.ErrNoStore, ErrUnknown or
// node.ErrOtherVersion.
func Of(addr string, f rdma.Fabric) (*Pool, error) {
	p := &Pool{Address: addr, Fabric: f}
	if a, err := fabrics.Parse(addr); err == nil {
		p.Address = a.String()
	}
	h, err := header(f)
	if err == nil {
		p.Header = h
		p.Kind, err = Lookup(h.Store)
	}
	if err == nil {
		err = h.ExpectSince(h.Store, p.Kind.Oldest, p.Kind.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", p.Address, err)
	}
	return p, nil
}

// As has the pool's workers use it as the named store does, such as fusee-nc, which has no pools of
// its own. Worker finds out whether the pool can be used so. The error wraps ErrUnknown.
func (p *Pool) As(store string) error {
	kind, err := Lookup(store)
	if err == nil {
		p.Kind = kind
	}
	return err
}

// KindOf returns the store that an open pool was made for.
func KindOf(f rdma.Fabric) (*Kind, error) {
	h, err := header(f)
	if err != nil {
		return nil, err
	}
	return Lookup(h.Store)
}

func header(f rdma.Fabric) (node.Header, error) {
	ep, err := rdma.Peek(f, "header")
	if err != nil {
		return node.Header{}, err
	}
	h, err := node.ReadHeader(ep, f.Nodes())
	return h, errors.Join(err, ep.Close())
}

// Worker opens the store for one worker, on an Endpoint of its own. The name is for people.
func (p *Pool) Worker(name string, o Options) (client.Store, rdma.Endpoint, error) {
	ep, err := p.Fabric.Open(name)
	if err != nil {
		return nil, nil, err
	}
	o.Fabric, o.Process = p.Fabric, &p.process
	s, err := p.Kind.Open(ep, o)
	if err != nil {
		return nil, nil, errors.Join(err, ep.Close())
	}
	return s, ep, nil
}

// Close lets go of the pool. A mem: pool ends; others stay.
func (p *Pool) Close() error {
	p.servers.Stop()
	return errors.Join(p.Fabric.Close(), p.servers.Err()) // Close waits for the servers' tasks
}

// DBOptions are the options of a client.DB on a pool. Zero values mean defaults.
type DBOptions struct {
	Name    string // of its clients, for people; default "db"
	Workers int    // operations at a time; default 2 a CPU
	Options        // of each worker
	// Silent turns the DB's counters off. The pool's telemetry has no record of it then: see
	// client.Publish.
	Silent bool
	// NoKeeper keeps this process from being a candidate for the master: see Pool.Keep.
	NoKeeper bool
	// Keeper are the options of its candidate for the pool's master.
	Keeper cluster.Options
}

// DB returns a handle for applications. It owns the pool: closing it closes the pool.
func (p *Pool) DB(o DBOptions) (*client.DB, error) {
	o.Name = cmp.Or(o.Name, "db")
	options := client.Options{Workers: o.Workers, Name: o.Name}
	if !o.Silent {
		options.Pool = p.Fabric
	}
	db, err := client.NewDB(workers{p, o}, options)
	if err != nil || o.NoKeeper {
		return db, err
	}
	// The first worker comes before the keeper, which may take the last place for a client.
	if err := p.Keep(o.Keeper); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// OpenDB opens a pool, whichever store it holds, for an application.
func OpenDB(addr string, o DBOptions) (*client.DB, error) {
	p, err := Open(addr)
	if err != nil {
		return nil, err
	}
	return p.DB(o)
}

// workers are those of a DB.
type workers struct {
	*Pool
	o DBOptions
}

func (w workers) RevokeLife(c rdma.Client) error { return w.Fabric.RevokeLife(c) }

func (w workers) Open() (client.Store, rdma.Endpoint, error) { return w.Worker(w.o.Name, w.o.Options) }
