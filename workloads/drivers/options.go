package drivers

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads"
)

// DefaultPool is the pool that is used when farkv.pool is not set.
const DefaultPool = "shm:farkv"

// The properties of metrics, which every database understands.
const (
	MetricsAddress = "farkv.metrics"
	MetricsPublic  = "farkv.metricspublic"
)

// Property is one of our stores' properties.
type Property struct{ Name, Default, Doc string }

// Properties documents what our stores understand besides YCSB's properties.
var Properties = []Property{
	{"farkv.pool", DefaultPool, "the pool's address: shm:NAME is shared by this user's processes and stays until" +
		" 'farkv down', shared:NAME with other users, too; mem: ends with the process; tcp:HOST:PORT,..., rdma:HOST:PORT,... and consul:HOST:PORT/POOL are on" +
		" memory nodes, and NAME on those that 'farkv up --fabric' started"},
	{"farkv.nodes", "3", "memory nodes of a pool that load makes"},
	{"farkv.memory", "from the records", "bytes of each memory node of a pool that load makes; 512MiB and 2GB are" +
		" understood"},
	{"farkv.overcommit", "false", "make a pool in this machine's memory even when that has less than the pool may take"},
	{"farkv.replicas", "2", "copies of index and data in a pool that load makes, 1 to farkv.nodes; the default is 3 of swarm" +
		" and dm-abd, and 1 of raw and rcuckoo"},
	{"farkv.indexreplicas", "farkv.replicas", "copies of the index alone"},
	{"farkv.datareplicas", "farkv.replicas", "copies of the data alone"},
	{"farkv.levels", "0", "how many times a full table of rcuckoo may double, in a pool that load makes"},
	{"farkv.table", "", "how the tables of rcuckoo are shaped in a pool that load makes: name=value, with commas between, of " + stores.TableDoc},
	{"farkv.cachebytes", "8MiB", "index cache of each thread; 0 turns it off"},
	{"farkv.cachethreshold", "0.5", "share of invalid hits, 0 to 1, above which a cached address is not used"},
	{MetricsAddress, "off", "HOST:PORT of the loopback, or its port, at which /metrics and /healthz are served meanwhile"},
	{MetricsPublic, "false", "serve them at an address that others can reach, too"},
	{"farkv.timeout", "2s", "limit of one operation; the pool keeps what it is made with as the highest"},
	{"dropdata", "false", "load removes the pool, whatever store it holds, and makes a new one; what is no pool stays"},
}

// options are the farkv.* properties.
type options struct {
	pool     string
	params   stores.Params
	opts     stores.Options
	nodes    int // 0: not said
	dropData bool
	least    uint64 // bytes that the records take at least, without copies
}

func parseOptions(p *properties.Properties, s *workloads.Spec, threads int) (options, error) {
	if err := checkNames(p); err != nil {
		return options{}, err
	}
	r := optionReader{p: p}
	replicas := r.count("farkv.replicas", 0, 1, fabrics.MaxNodes)
	o := options{
		pool:     p.GetString("farkv.pool", DefaultPool),
		nodes:    r.count("farkv.nodes", 0, 1, fabrics.MaxNodes),
		dropData: r.truth("dropdata"),
		least:    uint64(s.RecordCount) * uint64(s.LeastPairBytes()),
		opts: stores.Options{
			CacheBytes:     r.cache("farkv.cachebytes"),
			CacheThreshold: r.fraction("farkv.cachethreshold"),
			Timeout:        r.duration("farkv.timeout"),
		},
	}
	o.params = stores.Params{
		Nodes:         o.nodes,
		Memory:        r.bytes("farkv.memory"),
		Records:       uint64(s.RecordCount + s.ExpectedInserts()),
		PairBytes:     s.PairBytes(),
		IndexReplicas: r.count("farkv.indexreplicas", replicas, 1, fabrics.MaxNodes),
		DataReplicas:  r.count("farkv.datareplicas", replicas, 1, fabrics.MaxNodes),
		Clients:       max(1024, 2*threads),
		Timeout:       o.opts.Timeout,
		Overcommit:    r.truth("farkv.overcommit"),
		Table:         stores.Cuckoo{Levels: r.count("farkv.levels", 0, 0, stores.MaxLevels)},
	}
	if text, ok := r.get("farkv.table"); ok {
		if err := stores.ParseTable(&o.params.Table, text); err != nil && r.err == nil {
			r.err = workloads.Misuse("property farkv.table: %v", err)
		}
	}
	if a, err := fabrics.Parse(o.pool); err == nil && a.Nodes != nil && o.nodes == 0 {
		o.params.Nodes = len(a.Nodes)
	}
	if r.err == nil && o.pool == "" {
		r.err = workloads.Misuse("property farkv.pool is empty: give an address such as %s", DefaultPool)
	}
	return o, r.err
}

// checkNames refuses farkv.* properties that do not exist: a misspelt one would be measured as its default.
func checkNames(p *properties.Properties) error {
	for _, name := range p.Keys() {
		known := slices.ContainsFunc(Properties, func(q Property) bool { return q.Name == name })
		if strings.HasPrefix(name, "farkv.") && !known {
			return workloads.Misuse("unknown property %s: %s'go-ycsb help fusee' lists them", name,
				workloads.DidYouMean(name, propertyNames()))
		}
	}
	return nil
}

func propertyNames() (names []string) {
	for _, q := range Properties {
		names = append(names, q.Name)
	}
	return names
}

// fits checks the numbers of the pool to be made.
func (o *options) fits(p *stores.Params, kind *stores.Kind) error {
	for _, r := range []struct {
		name string
		n    int
	}{{"index", p.IndexReplicas}, {"data", p.DataReplicas}} {
		if r.n > p.Nodes {
			name := "farkv." + r.name + "replicas"
			if p.IndexReplicas == p.DataReplicas {
				name = "farkv.replicas"
			}
			return workloads.Misuse("%s=%d needs as many memory nodes: farkv.nodes is %d", name, r.n, p.Nodes)
		}
	}
	if err := p.Check(kind); err != nil {
		return workloads.Misuse("%v", err)
	}
	return nil
}

type optionReader struct {
	p   *properties.Properties
	err error
}

func (r *optionReader) fail(name, want string) {
	if r.err == nil {
		r.err = workloads.Misuse("property %s=%s: want %s", name, r.p.GetString(name, ""), want)
	}
}

func (r *optionReader) get(name string) (string, bool) {
	v, ok := r.p.Get(name)
	return strings.TrimSpace(v), ok
}

func (r *optionReader) count(name string, otherwise, least, most int) int {
	v, ok := r.get(name)
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		r.fail(name, "a number from "+strconv.Itoa(least)+" to "+strconv.Itoa(most))
	}
	return n
}

func (r *optionReader) truth(name string) bool {
	v, ok := r.get(name)
	if !ok {
		return false
	}
	b, err := strconv.ParseBool(strings.ToLower(v))
	if err != nil {
		r.fail(name, "true or false")
	}
	return b
}

func (r *optionReader) bytes(name string) uint64 {
	v, ok := r.get(name)
	if !ok {
		return 0
	}
	n, ok := ParseBytes(v)
	if !ok || n == 0 || n > fabrics.MaxMemory {
		r.fail(name, "a number of bytes such as 512MiB, up to "+strconv.Itoa(fabrics.MaxMemory>>40)+"TiB")
	}
	return n
}

// cache returns the bytes of the index cache: 0, by which stores mean their default, when it is not set, and
// negative, by which they mean none, when it is set to 0.
func (r *optionReader) cache(name string) int {
	v, ok := r.get(name)
	if !ok {
		return 0
	}
	n, ok := ParseBytes(v)
	if !ok || n > 1<<40 {
		r.fail(name, "a number of bytes such as 8MiB, or 0")
	}
	if n == 0 {
		return -1
	}
	return int(n)
}

func (r *optionReader) fraction(name string) float64 {
	v, ok := r.get(name)
	if !ok {
		return 0
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil || !(f >= 0 && f <= 1) {
		r.fail(name, "a number from 0 to 1")
	}
	if f == 0 {
		return math.SmallestNonzeroFloat64 // 0 means the default to a store
	}
	return f
}

func (r *optionReader) duration(name string) time.Duration {
	v, ok := r.get(name)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		r.fail(name, "a duration such as 500ms or 2s")
	}
	return d
}

var units = []struct {
	suffix string
	bytes  uint64
}{
	{"kib", 1 << 10}, {"mib", 1 << 20}, {"gib", 1 << 30}, {"tib", 1 << 40},
	{"kb", 1e3}, {"mb", 1e6}, {"gb", 1e9}, {"tb", 1e12},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"b", 1},
}

// ParseBytes reads a size such as 4096, 512MiB, 2GB or 1g (1 GiB).
func ParseBytes(s string) (uint64, bool) {
	number, unit := strings.ToLower(s), uint64(1)
	for _, u := range units {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, unit = n, u.bytes
			break
		}
	}
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
	if err != nil || n > (1<<62)/unit {
		return 0, false
	}
	return n * unit, true
}
