package drivers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/ycsb"
	"go.uber.org/goleak"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/runner"
)

func TestMain(m *testing.M) {
	// Redis's client goes on dialling in vain for a second after it was given up.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-redis/redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// pools are the pools of a pretended machine: fabrics in memory that outlive their Close, each with
// a map for a store.
type pools struct {
	byID   map[string]*fakePool
	latest *fakePool
	full   error // of the machine's memory
	free   uint64
	kind   stores.Kind
}

type fakePool struct {
	rdma.Fabric
	params stores.Params
	inUse  error
	mu     sync.Mutex
	rows   map[string][]byte
	open   int
	most   int // bytes of a pair; 0: any
}

func (p *fakePool) Close() error { return nil }

func newPools(t *testing.T) *pools {
	m := &pools{byID: map[string]*fakePool{}, free: 1 << 30}
	m.kind = stores.Kind{
		Name: "fake", Doc: "a map.", MaxPair: 20_000,
		Size: func(p stores.Params) stores.Params {
			if p.Nodes == 0 {
				p.Nodes = 3
			}
			if p.IndexReplicas == 0 {
				p.IndexReplicas = 2
			}
			if p.DataReplicas == 0 {
				p.DataReplicas = 2
			}
			p.Memory = 1 << 20
			return p
		},
		Open: func(ep rdma.Endpoint, o stores.Options) (client.Store, error) {
			m.latest.mu.Lock()
			defer m.latest.mu.Unlock()
			m.latest.open++
			return &fakeStore{m.latest}, nil
		},
	}
	t.Cleanup(func() {
		for _, p := range m.byID {
			if p.open != 0 {
				t.Errorf("%d stores were not closed", p.open)
			}
			if err := p.Fabric.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return m
}

func (m *pools) world() world {
	return world{
		lookup: func(name string) (*stores.Kind, error) {
			k := m.kind
			k.Format = func(f rdma.Fabric, p stores.Params) error { f.(*fakePool).params = p; return nil }
			return &k, nil
		},
		create: m.create, open: m.openPool, remove: m.remove,
		room: func() (string, uint64, error) { return "/pools", m.free, nil },
		afford: func(_ string, bytes uint64) error {
			if bytes > m.free {
				return fmt.Errorf("%w: %d bytes", fabrics.ErrOvercommit, bytes)
			}
			return nil
		},
	}
}

func (m *pools) create(addr string, g fabrics.Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error) {
	if _, err := fabrics.Parse(addr); err != nil {
		return nil, err
	}
	f, err := fabrics.Create("mem:", g, nil)
	if err != nil {
		return nil, err
	}
	if m.full != nil {
		return nil, errors.Join(m.full, f.Close())
	}
	p := &fakePool{Fabric: f, rows: map[string][]byte{}}
	m.byID[addr] = p
	m.latest = p
	return p, format(p)
}

func (m *pools) openPool(addr string) (rdma.Fabric, error) {
	if _, err := fabrics.Parse(addr); err != nil {
		return nil, err
	}
	if p := m.byID[addr]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("open %s: %w", addr, fabrics.ErrNoPool)
}

func (m *pools) remove(addr string, force bool) error {
	p := m.byID[addr]
	switch {
	case p == nil:
		return fmt.Errorf("remove %s: %w", addr, fabrics.ErrNoPool)
	case p.inUse != nil && !force:
		return p.inUse
	}
	delete(m.byID, addr)
	return p.Fabric.Close()
}

type fakeStore struct{ *fakePool }

func (s *fakeStore) MaxPair() int { return cmp.Or(s.most, math.MaxInt) }

func (s *fakeStore) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.rows[string(key)]; ok {
		return v, nil
	}
	return nil, fmt.Errorf("get %s: %w", key, client.ErrNotFound)
}

func (s *fakeStore) put(key, value []byte, there bool, otherwise error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.rows[string(key)]; ok != there {
		return fmt.Errorf("put %s: %w", key, otherwise)
	}
	s.rows[string(key)] = slices.Clone(value)
	return nil
}

func (s *fakeStore) Insert(key, value []byte) error {
	return s.put(key, value, false, client.ErrExists)
}
func (s *fakeStore) Update(key, value []byte) error {
	return s.put(key, value, true, client.ErrNotFound)
}

func (s *fakeStore) Delete(key []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rows, string(key))
	return nil
}

func (s *fakeStore) Scan(start []byte, n int, yield func(key, value []byte) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for k := range s.rows {
		if k >= string(start) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys[:min(n, len(keys))] {
		if !yield([]byte(k), s.rows[k]) {
			return nil
		}
	}
	return nil
}

func (s *fakeStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	return nil
}

func props(values ...string) *properties.Properties {
	p := properties.NewProperties()
	for _, kv := range append([]string{"recordcount=100", "operationcount=1000", "threadcount=2", "seed=1"},
		values...) {
		name, value, _ := strings.Cut(kv, "=")
		p.MustSet(name, value)
	}
	return p
}

// do creates the database for a command, and runs or loads with it.
func (m *pools) do(command string, values ...string) error {
	p := props(append(values, "command="+command)...)
	db, err := storeCreator{name: "fake", world: m.world()}.Create(p)
	if err != nil {
		return err
	}
	defer db.Close()
	c, err := runner.Configure(p)
	if err != nil {
		return err
	}
	c.Database, c.Load = db.(Database), command == Load
	res, err := runner.Run(context.Background(), c)
	if err == nil {
		err = res.Err()
	}
	return err
}

func TestLoadThenRun(t *testing.T) {
	m := newPools(t)
	wantMisuse := func(err error, what string) {
		t.Helper()
		if !runner.Misused(err) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want misuse with %q", err, what)
		}
	}
	if err := m.do(Run); !errors.Is(err, ErrNotLoaded) || runner.Misused(err) ||
		!strings.Contains(err.Error(), "no pool shm:farkv") {
		t.Errorf("run without a pool: %v", err)
	}
	if err := m.do(Load, "dropdata=true", "farkv.replicas=3", "farkv.datareplicas=1"); err != nil {
		t.Fatal(err)
	}
	pool := m.byID["shm:farkv"]
	if p := pool.params; p.IndexReplicas != 3 || p.DataReplicas != 1 || p.Records != 100 || p.PairBytes < 1024 ||
		p.Clients != 1024 {
		t.Errorf("the pool was made with %+v", p)
	}
	if len(pool.rows) != 100 {
		t.Errorf("%d records", len(pool.rows))
	}
	if err := m.do(Run, "dataintegrity=false", "readmodifywriteproportion=0.2"); err != nil {
		t.Error(err)
	}
	pool.most = 1072
	const small = "records of 1073 bytes: pool shm:farkv takes up to 1072, key and value together: make it anew with " +
		"'farkv up --pair-bytes 1073'"
	wantMisuse(m.do(Load, "insertstart=100", "recordcount=200"), small)
	wantMisuse(m.do(Run), small)
	if err := m.do(Run, "readproportion=1", "updateproportion=0"); err != nil {
		t.Errorf("reads of records that could not be written: %v", err)
	}
	pool.most = 0
	wantMisuse(m.do(Load), "is loaded already")
	wantMisuse(m.do(Load, "insertstart=99", "recordcount=200"), "has some of the records already")
	if err := m.do(Load, "insertstart=100", "recordcount=200"); err != nil {
		t.Errorf("load of further records: %v", err)
	}
	wantMisuse(m.do(Run, "farkv.nodes=5"), "farkv.nodes=5, but pool shm:farkv has 3")
	if err := m.do(Run, "table=other"); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("run on another table: %v", err)
	}
	wantFailure := func(err error, what string) {
		t.Helper()
		if err == nil || runner.Misused(err) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want a failure with %q", err, what)
		}
	}
	m.full = fmt.Errorf("reserve memory: %w: %w", rdma.ErrFull, syscall.ENOSPC)
	wantFailure(m.do(Load, "farkv.pool=shm:big"), "no space left in /pools, which has 1024 MiB free: make room there")
	m.full = fmt.Errorf("size the pool: %w", rdma.ErrFull)
	wantMisuse(m.do(Load, "farkv.pool=shm:big", "farkv.memory=1KB"), "farkv.memory is too little for 100 records")
	m.full, m.free = nil, 2*100*1000
	wantFailure(m.do(Load, "farkv.pool=shm:big"),
		"2 copies of the records take 1 MiB or more, and /pools has 0 MiB free")
	m.free = 3<<20 - 1 // the records fit, and the pool does not
	wantFailure(m.do(Load, "farkv.pool=shm:big"), "this machine lacks the memory: 3145728 bytes: lower recordcount")
	wantFailure(m.do(Load, "farkv.pool=mem:"), "or set farkv.overcommit=true")
	if err := m.do(Load, "farkv.pool=shm:over", "farkv.overcommit=true"); err != nil {
		t.Error(err)
	}
	m.free = 1 << 30
	pool.inUse = fmt.Errorf("remove: 2 clients: %w", fabrics.ErrInUse)
	wantFailure(m.do(Load, "dropdata=true"), "wait for its clients")
	pool.inUse = nil
	wantMisuse(m.do(Load, "dropdata=true", "farkv.replicas=4"), "needs as many memory nodes")
	if m.byID["shm:farkv"] != pool {
		t.Error("the pool was dropped for nothing")
	}
	if err := m.do(Load, "dropdata=true", "dataintegrity=true"); err != nil {
		t.Error(err)
	}
	if err := m.do(Run, "dataintegrity=true"); err != nil {
		t.Error(err)
	}
}

// A pool that is made with nothing said takes YCSB's records, whichever store it holds.
func TestDefaultPoolsTakeDefaultRecords(t *testing.T) {
	s, err := runner.ReadSpec(props())
	if err != nil {
		t.Fatal(err)
	}
	key := []byte("user1234567890123456789")
	value := make([]byte, s.PairBytes()-len(key))
	for _, name := range stores.Names() {
		pool, err := stores.Create("mem:", name, stores.Params{Records: 10})
		if err != nil {
			t.Fatal(err)
		}
		store, ep, err := pool.Worker("test", stores.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Insert(key, value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := errors.Join(store.Close(), ep.Close(), pool.Close()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPoolMisuse(t *testing.T) {
	m := newPools(t)
	for _, c := range []struct{ command, props, want string }{
		{Run, "farkv.pool=mem:", "use shm:NAME for load and run, or 'farkv bench'"},
		{Run, "farkv.pool=sim:", "farkv sim run"},
		{Load, "farkv.pool=sim:", "farkv sim run"},
		{Run, "farkv.pool=rdma:localhost", "farkv.pool: bad pool address"},
		{Load, "farkv.pool=shm:a/b", "farkv.pool: bad pool address"},
		{Load, "farkv.pool=", "farkv.pool is empty"},
		{Load, "farkv.nodes=0", "property farkv.nodes=0: want a number from 1"},
		{Load, "farkv.replicas=4", "farkv.replicas=4 needs as many memory nodes: farkv.nodes is 3"},
		{Load, "farkv.indexreplicas=4", "farkv.indexreplicas=4 needs"},
		{Load, "farkv.nodes=1000", "property farkv.nodes=1000: want a number from 1 to 256"},
		{Load, "farkv.memory=100TB", "property farkv.memory=100TB: want a number of bytes"},
		{Load, "fieldlength=20000", "fake takes up to 20000, key and value together: lower fieldlength"},
		{Run, "fieldlength=100000000", "fake takes up to 20000"},
		{Load, "farkv.datareplicas=4", "farkv.datareplicas=4 needs"},
		{Load, "farkv.memory=lots", "property farkv.memory=lots: want a number of bytes"},
		{Load, "farkv.cachebytes=-1", "property farkv.cachebytes=-1"},
		{Load, "farkv.cachethreshold=2", "property farkv.cachethreshold=2"},
		{Load, "farkv.timeout=2", "property farkv.timeout=2: want a duration"},
		{Load, "farkv.replica=2", "unknown property farkv.replica"},
		{Load, "fusee.pool=x", "unknown property fusee.pool: did you mean farkv.pool?"},
		{Load, "swarm.addr=x", "unknown property swarm.addr: "},
		{Load, "dropdata=maybe", "property dropdata=maybe"},
		{Run, "scanproportion=0.95", "fake has no scans"},
		{Load, "scanproportion=0.95", "fake has no scans"},
		{Load, "recordcount=0", "recordcount is not set"},
	} {
		if err := m.do(c.command, c.props); !runner.Misused(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s: %v, want misuse with %q", c.command, c.props, err, c.want)
		}
	}
	if len(m.byID) > 0 {
		t.Errorf("pools were made: %v", m.byID)
	}
}

func TestStoreIsAnUpstreamDB(t *testing.T) {
	m := newPools(t)
	m.kind.Scans = true
	var db ycsb.DB
	db, err := storeCreator{name: "fake", world: m.world()}.Create(props("command=load", "fieldcount=3",
		"farkv.pool=mem:"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := db.InitThread(t.Context(), 0, 1)
	row := func(values ...string) map[string][]byte {
		r := map[string][]byte{}
		for _, kv := range values {
			name, value, _ := strings.Cut(kv, "=")
			r[name] = []byte(value)
		}
		return r
	}
	for _, err := range []error{
		db.Insert(ctx, "", "a", row("field0=x", "field1=y", "field2=z")),
		db.Insert(ctx, "", "b", row("field1=y")),
		db.Update(ctx, "", "a", row("field1=Y", "field2=Z")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := db.Read(ctx, "", "a", nil); err != nil ||
		fmt.Sprintf("%s", got) != "map[field0:x field1:Y field2:Z]" {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := db.Scan(ctx, "", "a", 5, []string{"field1"}); err != nil ||
		fmt.Sprintf("%s", got) != "[map[field1:Y] map[field1:y]]" {
		t.Errorf("%s, %v", got, err)
	}
	if err := db.Update(ctx, "", "a", row("field9=x")); err == nil {
		t.Error("a field that is not there was written")
	}
	if err := db.Delete(ctx, "", "a"); err != nil {
		t.Error(err)
	}
	if _, err := db.Read(ctx, "", "a", nil); !errors.Is(err, client.ErrNotFound) {
		t.Error(err)
	}
	if _, err := db.Read(t.Context(), "", "a", nil); !errors.Is(err, rdma.ErrClosed) {
		t.Error(err)
	}
	db.CleanupThread(ctx)
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// upstream is a driver such as upstream's: it knows maps, and says "not there" by an empty one.
type upstream struct {
	rows    map[string]map[string][]byte
	threads int
}

func (u *upstream) Close() error { return nil }
func (u *upstream) InitThread(ctx context.Context, _, n int) context.Context {
	u.threads += n
	return ctx
}
func (u *upstream) CleanupThread(context.Context) { u.threads-- }
func (u *upstream) Read(_ context.Context, table, key string, fields []string) (map[string][]byte, error) {
	row := map[string][]byte{}
	for _, f := range fields {
		if v, ok := u.rows[table+key][f]; ok {
			row[f] = v
		}
	}
	return row, nil
}
func (u *upstream) Scan(_ context.Context, table, key string, n int, _ []string) ([]map[string][]byte, error) {
	return []map[string][]byte{u.rows[table+key]}, nil
}
func (u *upstream) Update(ctx context.Context, table, key string, values map[string][]byte) error {
	return u.Insert(ctx, table, key, values)
}
func (u *upstream) Insert(_ context.Context, table, key string, values map[string][]byte) error {
	if u.rows[table+key] == nil {
		u.rows[table+key] = map[string][]byte{}
	}
	for f, v := range values {
		u.rows[table+key][f] = slices.Clone(v)
	}
	return nil
}
func (u *upstream) Delete(context.Context, string, string) error { return nil }

func TestUpstreamDriverRuns(t *testing.T) {
	u := &upstream{rows: map[string]map[string][]byte{}}
	p := props("dataintegrity=true", "readmodifywriteproportion=0.5", "scanproportion=0.1", "readallfields=false",
		"threadcount=1", "table=t")
	c, err := runner.Configure(p)
	if err != nil {
		t.Fatal(err)
	}
	c.Database = newForeign(u, c.Spec, 1)
	res, err := runner.Run(t.Context(), c)
	if err != nil || !errors.Is(res.Err(), client.ErrNotFound) || res.Failed == 0 {
		t.Errorf("run on nothing: %d failed: %v, %v", res.Failed, res.Err(), err)
	}
	for _, c.Load = range []bool{true, false} {
		res, err := runner.Run(t.Context(), c)
		if err != nil || res.Failed > 0 {
			t.Errorf("load %v: %d failed: %v, %v", c.Load, res.Failed, res.Err(), err)
		}
	}
	if u.threads != 0 || len(u.rows) != 100 {
		t.Errorf("%d threads not cleaned up, %d rows", u.threads, len(u.rows))
	}
}

func TestRedisIsWired(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // once closed, its port has no listener
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	_, err = Create("redis", props("redis.addr="+addr, "redis.dial_timeout="+time.Second.String()))
	if err == nil || runner.Misused(err) || !strings.Contains(err.Error(), "open redis: ") ||
		!strings.Contains(err.Error(), addr) {
		t.Errorf("no server: %v", err)
	}
}

func TestCreateNoopAndUnknown(t *testing.T) {
	db, err := Create("noop", props())
	if err != nil {
		t.Fatal(err)
	}
	c, err := runner.Configure(props())
	if err != nil {
		t.Fatal(err)
	}
	c.Database = db
	if res, err := runner.Run(t.Context(), c); err != nil || res.Failed > 0 || res.Operations != 1000 ||
		res.Counters != nil {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := Create("noop", props("dataintegrity=true")); !runner.Misused(err) {
		t.Error(err)
	}
	if _, err := Create("nosuch", props()); !runner.Misused(err) ||
		!strings.Contains(err.Error(), "noop, race, race-dtx, race-rtx, raw, rcuckoo, redis") {
		t.Error(err)
	}
	for _, name := range stores.Names() {
		if ycsb.GetDBCreator(name) == nil {
			t.Errorf("%s is not registered", name)
		}
	}
}
