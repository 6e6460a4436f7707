package stores

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race/extendible"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

func init() {
	repairable := raceKind(extendible.RTX,
		"RACE hashing (ATC 2021) on rTX: extendible hashing whose rehash is one repairable transaction")
	repairable.Options = append(repairable.Options, leaseOption(extendible.DefaultLease))
	repairable.Explored = repairable.Explored.With(Values{lockLease: 100 * time.Microsecond})
	register(repairable)
	transactions := raceKind(extendible.DTX, "RACE hashing (ATC 2021) on DTX, DrTM+H's transactions: one whose "+
		"client died blocks others until the master has recovered it")
	transactions.Baseline = true
	register(transactions)
	original := raceKind(extendible.Locked, "RACE hashing (ATC 2021), the original: a rehash locks a subtable, and "+
		"one whose client died blocks others until it is recovered")
	original.Baseline = true
	register(original)
}

var (
	raceGroups = Option{Name: "groups", Type: Int, Derived: "from the records, 1,024 at most", Min: 2,
		Max: extendible.MaxGroups, Doc: "bucket groups of 21 slots of a subtable, which is split as a whole"}
	raceDepth = Option{Name: "depth", Type: Int, Derived: "from the memory", Min: 1, Max: extendible.MaxDepth,
		Doc: "local depth of a subtable, at most: it doubles so often"}
	raceSplits = Option{Name: "splits", When: Opened, Type: Float, Default: 0.0, Max: 1,
		Doc: "share of INSERTs that split their subtable though there is room, to look for faults"}
)

func raceKind(name, doc string) *Kind {
	pool := func(p Params) (extendible.Params, uint64, error) { return racePool(name, p) }
	return &Kind{
		Name: name,
		Doc:  doc,
		Size: func(p Params) Params { return sizeRace(name, p) },
		Format: formats(name, pool, func(f rdma.Fabric, p extendible.Params) error {
			return extendible.Make(f, name, p)
		}),
		Version: extendible.FormatVersion,
		Open: func(ep rdma.Endpoint, o Options) (client.Store, error) {
			return opened(extendible.Open(ep, extendible.Options{Format: name, Timeout: o.Timeout,
				Splits: o.Own.Float(raceSplits.Name)}))
		},
		Options: []Option{raceGroups, raceDepth, raceSplits},

		Refuse:    func(p Params) error { return refuseRace(name, p) },
		Limits:    limitsOfRace,
		Recoverer: mends(extendible.NewRecoverer),
		Describe:  extendible.Describe,
		Steps:     extendible.Steps(name),
		MaxPair:   extendible.MaxPair,
		Slots:     true,
		Cramped:   func(n int) Values { return Values{raceGroups.Name: 2, raceDepth.Name: n} },
		Explored:  Values{raceSplits.Name: 0.25},
		Check:     extendible.Check,
		Usage:     extendible.Usage,

		Replicas: "1: what a dead memory node had is lost",
		Outlives: extendible.Outlives,
		Fill:     extendible.Fill,
	}
}

func racePool(name string, p Params) (params extendible.Params, memory uint64, err error) {
	return extendible.Size(extendible.Shape{
		Format: name, Nodes: p.Nodes, Records: p.Records, PairBytes: p.PairBytes, Groups: p.Own.Int(raceGroups.Name),
		Depth: p.Own.Int(raceDepth.Name), Clients: p.Clients, Memory: p.Memory, Timeout: p.Timeout,
		Lease: p.Own.Duration(lockLease),
	})
}

// sizeRace fills in what p leaves open. Index and data have one replica, as in the paper.
func sizeRace(name string, p Params) Params {
	pool := func(p Params) (extendible.Params, uint64, error) { return racePool(name, p) }
	return sizeBy(pool, p, p.PairBytes)
}

// limitsOfRace reads what a pool takes from the parameters in its header.
func limitsOfRace(h node.Header) (Limits, error) {
	var p extendible.Params
	if err := json.Unmarshal(h.Params, &p); err != nil {
		return Limits{}, fmt.Errorf("read the parameters of a pool of RACE hashing: %w", err)
	}
	return Limits{Key: p.PairBytes, Value: p.PairBytes, Pair: p.PairBytes}, nil
}

func refuseRace(name string, p Params) error {
	switch {
	case p.IndexReplicas != 1 || p.DataReplicas != 1:
		return fmt.Errorf("%d replicas of the index and %d of the data: it has one of each", p.IndexReplicas,
			p.DataReplicas)
	case p.Spares > 0:
		return errors.New("spares: of a node that died nothing is left that another could take over")
	}
	_, _, err := racePool(name, p)
	if err != nil { // Check says what kind of error it is
		return errors.New(strings.TrimSuffix(err.Error(), ": "+extendible.ErrParams.Error()))
	}
	return nil
}
