package stores

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

func init() {
	repairable := shermanKind(sherman.RTX, "Sherman's B-link tree (SIGMOD 2022) over repairable transactions: "+
		"ordered, with scans; a client that meets what a dead client left mends it")
	repairable.Options = append(repairable.Options, leaseOption(sherman.DefaultLease))
	repairable.Explored = repairable.Explored.With(Values{lockLease: time.Millisecond})
	register(repairable)
	transactions := shermanKind(sherman.DTX, "Sherman's B-link tree (SIGMOD 2022) over DTX, DrTM+H's transactions: "+
		"ordered, with scans; a client that dies in one blocks others until the master has recovered it")
	transactions.Baseline = true
	register(transactions)
}

// Without is what a store over Sherman's trees leaves out of its protocol, to measure what it
// costs.
type Without = sherman.Without

// What may be left out.
const (
	EarlyLocks = sherman.EarlyLocks
	LogElision = sherman.LogElision
	Logs       = sherman.Logs
)

const (
	lockLease = "lock-lease"
	forgetful = "forgetful"
)

// leaseOption is the option of stores that have leases on locks. In the parameters of their pools
// it is called "lease".
func leaseOption(d time.Duration) Option {
	return Option{Name: lockLease, Field: "lease", Type: Duration, Default: d, Min: 1,
		Doc: "how long a lock may stay as it is before its holder is suspected"}
}

var shermanOptions = []Option{
	cacheOption(sherman.DefaultCache),
	{Name: forgetful, When: Opened, Type: Bool, Default: false,
		Doc: "read each node's metadata before its data, as in rTX's paper, and remember none"},
	{Name: "tree", Doc: "how the tree is shaped", Parts: []Option{
		{Name: "node-bytes", Type: Int, Default: sherman.DefaultNode, Min: 256, Max: sherman.MaxNode, Doc: "of a node"},
		{Name: keyBytes, Type: Int, Derived: fmt.Sprintf("the records', %d at least", sherman.DefaultKey), Min: 1,
			Max: sherman.MaxKey, Doc: "longest key"},
		{Name: valueBytes, Type: Int, Derived: "the pair's", Min: 1, Max: sherman.MaxValue, Doc: "longest value"},
	}},
}

func shermanKind(name, doc string) *Kind {
	pool := func(p Params) (sherman.Params, uint64, error) { return shermanPool(name, p) }
	return &Kind{
		Name:   name,
		Doc:    doc,
		Size:   func(p Params) Params { return sizeSherman(name, p) },
		Format: formats(name, pool, func(f rdma.Fabric, p sherman.Params) error { return sherman.Make(f, name, p) }),
		Open: func(ep rdma.Endpoint, o Options) (client.Store, error) {
			return opened(sherman.Open(ep, sherman.Options{Format: name, CacheBytes: new(o.Own.Int(CacheBytes)),
				Timeout: o.Timeout, Forgetful: o.Own.Bool(forgetful), Without: o.Without}))
		},
		Version: sherman.FormatVersion,
		Options: slices.Clone(shermanOptions),

		Refuse:    func(p Params) error { return refuseSherman(name, p) },
		Limits:    limitsOfSherman,
		Recoverer: mends(sherman.NewRecoverer),
		Describe:  sherman.Describe,
		Steps:     sherman.Steps(name),
		MaxPair:   sherman.MaxValue,
		Slots:     true,
		Scans:     true,
		Contends:  true,
		Explored:  exploredCache.With(Values{"node-bytes": 256, keyBytes: 40}), // of two entries, which few keys split
		Check:     sherman.Check,
		Usage:     sherman.Usage,

		Replicas: "1",
		Outlives: sherman.Outlives,
		Fill:     sherman.Fill,
	}
}

func shermanPool(name string, p Params) (params sherman.Params, memory uint64, err error) {
	own := p.Own
	return sherman.Size(sherman.Shape{
		Format: name, Nodes: p.Nodes, Memory: p.Memory, Records: p.Records, Clients: p.Clients, Workers: p.Workers,
		Timeout:   p.Timeout,
		NodeBytes: own.Int("node-bytes"), KeyBytes: cmp.Or(own.Int(keyBytes), max(p.KeyBytes, sherman.DefaultKey)),
		ValueBytes: cmp.Or(own.Int(valueBytes), p.PairBytes), Lease: own.Duration(lockLease),
	})
}

// sizeSherman fills in what p leaves open. There is one copy of everything.
func sizeSherman(name string, p Params) Params {
	p.DataReplicas = cmp.Or(p.DataReplicas, p.IndexReplicas, 1)
	p.IndexReplicas = cmp.Or(p.IndexReplicas, p.DataReplicas)
	p.PairBytes = cmp.Or(p.Own.Int(valueBytes), p.PairBytes, slotBytes) // as long as values may be, keys do not count
	p.defaults()
	asked := p.Memory
	p.Memory = 0
	if _, need, err := shermanPool(name, p); err == nil {
		p.Memory = max(asked, need)
	}
	return p
}

// limitsOfSherman reads what a pool takes from the parameters in its header.
func limitsOfSherman(h node.Header) (Limits, error) {
	var p sherman.Params
	if err := json.Unmarshal(h.Params, &p); err != nil {
		return Limits{}, fmt.Errorf("read the parameters of a pool of Sherman: %w", err)
	}
	return Limits{Key: p.KeyBytes, Value: p.ValueBytes}, nil
}

func refuseSherman(name string, p Params) error {
	switch {
	case p.IndexReplicas != 1 || p.DataReplicas != 1:
		return errors.New("its nodes and values have one copy each: want 1 replica")
	case p.Spares > 0:
		return errors.New("spares: nothing is left of what a dead node had, and so no node takes its place")
	}
	if _, _, err := shermanPool(name, p); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), sherman.ErrParams.Error()+": "))
	}
	return nil
}
