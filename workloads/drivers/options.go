package drivers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// DefaultPool is the pool that is used when farkv.pool is not set.
const DefaultPool = "shm:farkv"

// The properties of metrics, which every database understands.
const (
	MetricsAddress = "farkv.metrics"
	MetricsPublic  = "farkv.metricspublic"
)

// Properties documents what our stores understand besides YCSB's properties.
var Properties = slices.Concat([]runner.Property{
	{Name: "farkv.pool", Default: DefaultPool,
		Doc: "the pool's address: shm:NAME is shared by this user's processes and stays until" +
			" 'farkv down', shared:NAME with other users, too; mem: ends with the process; tcp:HOST:PORT,..., " +
			"rdma:HOST:PORT,... and consul:HOST:PORT/POOL are on memory nodes, and NAME on those that 'farkv up " +
			"--fabric' started"},
	{Name: "farkv.nodes", Default: "3", Doc: "memory nodes of a pool that load makes"},
	{Name: "farkv.memory", Default: "from the records",
		Doc: "bytes of each memory node of a pool that load makes; 512MiB and 2GB are understood"},
	{Name: "farkv.overcommit", Default: "false",
		Doc: "make a pool in this machine's memory even when that has less than the pool may take"},
	{Name: replicas, Default: stores.DefaultReplicas(),
		Doc: "copies of index and data in a pool that load makes, 1 to farkv.nodes"},
	{Name: "farkv.indexreplicas", Default: replicas, Doc: "copies of the index alone"},
	{Name: "farkv.datareplicas", Default: replicas, Doc: "copies of the data alone"},
}, offered(), []runner.Property{
	{Name: MetricsAddress, Default: "off",
		Doc: "HOST:PORT of the loopback, or its port, at which /metrics and /healthz are served meanwhile"},
	{Name: MetricsPublic, Default: "false", Doc: "serve them at an address that others can reach, too"},
	{Name: "farkv.timeout", Default: "2s",
		Doc: "limit of one operation; the pool keeps what it is made with as the highest"},
	{Name: "dropdata", Default: "false",
		Doc: "load removes the pool, whatever store it holds, and makes a new one; what is no pool stays"},
})

const replicas = "farkv.replicas"

// propertyOf names the property that sets a store's option.
func propertyOf(o *stores.Option) string { return "farkv." + strings.ReplaceAll(o.Name, "-", "") }

// offered documents the properties that are options of stores.
func offered() (list []runner.Property) {
	for _, o := range stores.Offers() {
		list = append(list, runner.Property{
			Name: propertyOf(&o.Option), Default: o.Otherwise, Doc: o.Of() + whenMade(&o.Option),
		})
	}
	return list
}

func whenMade(o *stores.Option) string {
	if o.When == stores.Made {
		return "in a pool that load makes: " + o.Help()
	}
	return o.Help()
}

// options are the farkv.* properties.
type options struct {
	pool     string
	named    string // farkv.pool as it was set; "": it was not
	started  string // the name under which the pool's nodes run on this machine; "": they do not
	params   stores.Params
	opts     stores.Options
	nodes    int // 0: not said
	dropData bool
	least    uint64 // bytes that the records take at least, without copies
}

func parseOptions(p *properties.Properties, kind *stores.Kind, s *workloads.Spec, threads int) (options, error) {
	if err := checkNames(p); err != nil {
		return options{}, err
	}
	r := &workloads.Reader{Properties: p}
	count := func(name string, def int) int { return int(r.Count(name, int64(def), 1, fabrics.MaxNodes)) }
	replicas := count(replicas, 0)
	own, timeout := readOwn(r, kind), workloads.Parsed(r, "farkv.timeout", 0, durationOf)
	o := options{
		pool:     p.GetString("farkv.pool", fabrics.UsualPool()),
		named:    p.GetString("farkv.pool", ""),
		nodes:    count("farkv.nodes", 0),
		dropData: r.Bool("dropdata", false),
		least:    uint64(s.RecordCount) * uint64(s.LeastPairBytes()),
		opts:     stores.Options{Timeout: timeout, Own: kind.Choose(own, stores.Opened)},
	}
	o.params = stores.Params{
		Nodes:         o.nodes,
		Memory:        workloads.Parsed(r, "farkv.memory", 0, bytesOf),
		Records:       uint64(s.RecordCount + s.ExpectedInserts()),
		PairBytes:     s.PairBytes(),
		KeyBytes:      s.KeyBytes(),
		IndexReplicas: count("farkv.indexreplicas", replicas),
		DataReplicas:  count("farkv.datareplicas", replicas),
		Clients:       max(1024, 2*threads),
		Timeout:       timeout,
		Overcommit:    r.Bool("farkv.overcommit", false),
		Own:           kind.Choose(own, stores.Made),
	}
	if a, err := fabrics.Parse(o.pool); err == nil && a.Nodes != nil && o.nodes == 0 {
		o.params.Nodes = len(a.Nodes)
	}
	if r.Err == nil && o.pool == "" {
		r.Err = workloads.Usagef("property farkv.pool is empty: give an address such as %s", DefaultPool)
	}
	return o, r.Err
}

// readOwn reads the properties that are options of stores.
func readOwn(r *workloads.Reader, kind *stores.Kind) stores.Values {
	own := stores.Values{}
	for _, o := range stores.Offers() {
		name := propertyOf(&o.Option)
		text, set := r.Get(name)
		if !set {
			continue
		}
		if err := own.Read(&o.Option, text); err != nil && r.Err == nil {
			r.Err = workloads.Usagef("property %s=%s: %v", name, text, err)
		}
	}
	if err := kind.Heeds(own); err != nil && r.Err == nil {
		r.Err = workloads.Usagef("%v", err)
	}
	return own
}

// checkNames refuses farkv.* properties that do not exist, and those that begin with a store's
// name, as they do of other databases: they would be measured as their defaults.
func checkNames(p *properties.Properties) error {
	names := runner.Names(Properties)
	for _, name := range p.Keys() {
		prefix, rest, _ := strings.Cut(name, ".")
		_, err := stores.Lookup(prefix)
		if rest != "" && (prefix == "farkv" || err == nil) && !slices.Contains(names, name) {
			return workloads.Usagef("unknown property %s: %s'go-ycsb help' with the store's name lists them", name,
				workloads.DidYouMean("farkv."+rest, names))
		}
	}
	return nil
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
			return workloads.Usagef("%s=%d needs as many memory nodes: farkv.nodes is %d", name, r.n, p.Nodes)
		}
	}
	if err := p.Check(kind); err != nil {
		return workloads.Usagef("%v", err)
	}
	return nil
}

// bytesOf reads the bytes of a memory node.
func bytesOf(text string) (uint64, string) {
	n, ok := stores.ParseBytes(text)
	if !ok || n == 0 || n > fabrics.MaxMemory {
		return 0, fmt.Sprintf("a number of bytes such as 512MiB, up to %dTiB", fabrics.MaxMemory>>40)
	}
	return n, ""
}

func durationOf(text string) (time.Duration, string) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, "a duration such as 500ms or 2s"
	}
	return d, ""
}
