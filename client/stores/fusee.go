package stores

import (
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node/rdma"
)

func init() {
	register(fuseeKind("fusee",
		"FUSEE (FAST 2023): replicated RACE index, SNAPSHOT, embedded log, adaptive index cache",
		func(*fusee.Options) {}))
	register(fuseeKind("fusee-cr", "FUSEE that CASes index replicas one after the other instead of SNAPSHOT",
		func(o *fusee.Options) { o.Sequential = true }))
	nc := fuseeKind("fusee-nc", "FUSEE without index cache", func(o *fusee.Options) { o.CacheBytes = new(0) })
	nc.Options, nc.Explored = []Option{nodeCentric, fuseeGroups, fuseeSplits}, exploredSplits
	register(nc)
}

// maxFuseePair follows from the length of a pair in its slot: a byte, in units of 64 bytes (FUSEE
// 4.3), minus the pair's header and its log entry.
const maxFuseePair = 16_264

const cacheThreshold = "cache-threshold"

// cacheOption is the option for the size of a worker's index cache, with its default in bytes.
func cacheOption(bytes int) Option {
	return Option{Name: CacheBytes, When: Opened, Type: Bytes, Default: bytes, Max: maxCache,
		Doc: "index cache of each worker; 0 turns it off"}
}

const maxCache = 1 << 40

// exploredCache is enough for the few keys of an exploration.
var exploredCache = Values{CacheBytes: 64 << 10}

// exploredSplits makes indexes grow although few keys do not fill them.
var exploredSplits = Values{"index-splits": 0.1}

var nodeCentric = Option{Name: "node-centric", Type: Bool, Default: false,
	Doc: "memory nodes hand out memory object by object (FUSEE 6.3)"}

var (
	fuseeGroups = Option{Name: "index-groups", Type: Int, Derived: "from the records", Min: 2, Max: layout.MaxGroups,
		Doc: "bucket groups of 21 slots that the index begins with, in one subtable"}
	fuseeSplits = Option{Name: "index-splits", When: Opened, Type: Float, Default: 0.0, Max: 1,
		Doc: "share of INSERTs that ask for a larger index though there is room, to look for faults"}
)

var fuseeOptions = []Option{nodeCentric, fuseeGroups, fuseeSplits, cacheOption(fusee.DefaultCache),
	{Name: cacheThreshold, When: Opened, Type: Float, Default: fusee.DefaultThreshold, Max: 1,
		Doc: "share of invalid hits, 0 to 1, above which a cached address is bypassed"}}

func fuseeKind(name, doc string, vary func(*fusee.Options)) *Kind {
	var usual fusee.Options
	vary(&usual)
	pool := func(p Params) (layout.Params, uint64, error) { return fuseePool(p, name == layout.FormatCR) }
	return &Kind{
		Name:    name,
		Doc:     doc,
		Version: layout.FormatVersion,
		Size:    sizeFusee,
		Format:  formats(name, pool, session.Make),
		Open: func(ep rdma.Endpoint, o Options) (client.Store, error) {
			opt := fusee.Options{Splits: o.Own.Float(fuseeSplits.Name), CacheBytes: new(o.Own.Int(CacheBytes)),
				CacheThreshold: new(o.Own.Float(cacheThreshold)), Timeout: o.Timeout}
			vary(&opt)
			return opened(fusee.Open(ep, opt))
		},
		Recoverer: mends(newFuseeRecoverer),
		Describe:  fusee.Describe,
		Paper:     map[string]int{"GET": 1, "UPDATE": 4, "INSERT": 4, "DELETE": 4},
		Steps:     fusee.Steps(usual),
		MaxPair:   maxFuseePair,
		Check:     fusee.Check,
		Usage:     fusee.Usage,
		Options:   fuseeOptions,
		Cramped:   func(n int) Values { return Values{fuseeGroups.Name: 2} },
		Explored:  exploredCache.With(exploredSplits).With(Values{cacheThreshold: 0.9}),
		Replicas:  "up to as many as there are nodes",
		Split:     true,
		Outlives:  fusee.Outlives,
		Fill:      fusee.Fill,
	}
}

func fuseePool(p Params, sequential bool) (params layout.Params, memory uint64, err error) {
	params, memory, err = layout.Size(layout.Shape{
		Nodes: p.Nodes, Spares: p.Spares, Memory: p.Memory, Records: p.Records, PairBytes: p.PairBytes,
		Groups: uint64(p.Own.Int(fuseeGroups.Name)), IndexReplicas: p.IndexReplicas,
		DataReplicas: p.DataReplicas, Clients: p.Clients, Workers: p.Workers, Timeout: p.Timeout,
	})
	params.Sequential, params.NodeCentric = sequential, p.Own.Bool(nodeCentric.Name)
	return params, memory, err
}

// sizeFusee fills in what p leaves open. Parameters that make no pool are found by Format.
func sizeFusee(p Params) Params {
	p.defaults()
	if _, need, err := fuseePool(p, false); err == nil {
		p.Memory = need
	}
	return p
}
