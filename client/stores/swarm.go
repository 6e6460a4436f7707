package stores

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/swarm"
	"github.com/farkv/farkv/node/rdma"
)

func init() {
	register(swarmKind(swarm.Format,
		"SWARM-KV (SOSP 2024): quorum registers of one trip, replicated index, cache of locations, no downtime",
		variant{}))
	register(swarmKind(swarm.FormatABD,
		"what SWARM-KV is measured against: ABD's quorums over its index, one word an object, nothing in place",
		variant{apart: true, abd: true}))
	register(swarmKind("swarm-apart", "SWARM-KV without data in place", variant{apart: true}))
	register(swarmKind(swarm.FormatRaw,
		"the lower bound: one replica, READ and WRITE in place without any synchronisation; not linearizable",
		variant{raw: true}))
}

// variant says how a store on SWARM's code differs from SWARM-KV.
type variant struct {
	// apart: no value is in place.
	apart bool
	// abd: objects have one word and no locks.
	abd bool
	// raw: objects have no words and one replica.
	raw bool
}

// slotBytes is the default size of the largest pair: YCSB's record of 10 fields of 100 bytes has
// 1,073 bytes with its key.
const slotBytes = 1152

// maxSwarmPair is such that a node's memory has room for several segments of 65,535 buffers.
const maxSwarmPair = 1 << 20

// The parts of an object of SWARM-KV. The baselines have no such options.
var (
	swarmWords = Option{Name: "words", Type: Int, Default: 8, Min: 1,
		Doc: "8-byte metadata words of an object's replica (section 4.4)"}
	swarmLocks = Option{Name: "locks", Type: Int, Default: 16, Min: 1,
		Doc: "clients that guess timestamps; the updates of others take two trips"}
)

func swarmKind(name, doc string, v variant) *Kind {
	k := &Kind{
		Name:    name,
		Doc:     doc,
		Version: swarm.FormatVersion,
		Size:    func(p Params) Params { return sizeSwarm(p, v) },
		Format:  formats(name, func(p Params) (swarm.Params, uint64, error) { return swarmPool(p, v) }, swarm.Make),
		Open: func(ep rdma.Endpoint, o Options) (client.Store, error) {
			return opened(swarm.OpenStore(ep, swarm.StoreOptions{CacheBytes: new(o.Own.Int(CacheBytes)),
				Timeout: o.Timeout, Apart: v.apart, Raw: v.raw}))
		},
		Refuse:   func(p Params) error { return refuseSwarm(p, v) },
		Describe: swarm.Describe,
		Steps:    swarm.StoreSteps(v.raw, !v.abd),
		MaxPair:  maxSwarmPair,
		Slots:    true,
		Check:    swarm.Check,
		Usage:    swarm.Usage,

		Majority:  true,
		Recoverer: mends(swarm.NewRecoverer),
		Outlives:  swarm.Outlives,
		Fill:      swarm.Fill,

		Explored: exploredCache,
		Options:  []Option{cacheOption(swarm.DefaultCache)},
		Replicas: "3, 5 or 7, of which a majority goes on alone, or 1",
		Limit:    "its directory does not grow: it has room for the records that it was made for, and a quarter more",
		Baseline: v.raw || v.abd,
	}
	if v == (variant{}) {
		k.Paper = map[string]int{"GET": 1, "UPDATE": 1} // INSERT and DELETE also take trips of the index
	}
	if v.raw {
		k.Replicas = "1, which makes it the lower bound"
	}
	if !k.Baseline {
		k.Options = append(k.Options, swarmWords, swarmLocks)
	}
	return k
}

func swarmPool(p Params, v variant) (params swarm.Params, memory uint64, err error) {
	return swarm.Size(swarm.PoolShape{
		Nodes: p.Nodes, Records: p.Records, PairBytes: p.PairBytes, Replicas: p.DataReplicas, Words: v.words(p.Own),
		Locks: p.Own.Int(swarmLocks.Name), Clients: p.Clients, Timeout: p.Timeout, Apart: v.apart,
	})
}

// words returns the metadata words of an object's replica.
func (v variant) words(own Values) int {
	if v.abd {
		return 1
	}
	return own.Int(swarmWords.Name)
}

// sizeSwarm fills in what p leaves open. Index and objects have the same number of replicas:
// three if there are as many nodes, so that a majority survives the death of one; RAW has one.
func sizeSwarm(p Params, v variant) Params {
	nodes := cmp.Or(p.Nodes, 3)
	p.DataReplicas = cmp.Or(p.DataReplicas, p.IndexReplicas)
	if p.DataReplicas == 0 {
		p.DataReplicas = 1
		if nodes >= 3 && !v.raw {
			p.DataReplicas = 3
		}
	}
	p.IndexReplicas = cmp.Or(p.IndexReplicas, p.DataReplicas)
	p.PairBytes = cmp.Or(p.PairBytes, slotBytes)
	p.defaults()
	if _, need, err := swarmPool(p, v); err == nil {
		p.Memory = max(p.Memory, need)
	}
	return p
}

// refuseSwarm returns an error about parameters that are no pool of SWARM's code.
func refuseSwarm(p Params, v variant) error {
	switch {
	case v.raw && (p.IndexReplicas != 1 || p.DataReplicas != 1):
		return fmt.Errorf("%d replicas of the index and %d of the data: it has one of each, which makes it the lower "+
			"bound", p.IndexReplicas, p.DataReplicas)
	case p.IndexReplicas != p.DataReplicas:
		return fmt.Errorf("%d replicas of the index and %d of the data: they lie with the same majorities: want as "+
			"many", p.IndexReplicas, p.DataReplicas)
	case p.DataReplicas%2 == 0 || p.DataReplicas > swarm.MaxReplicas:
		return fmt.Errorf("%d replicas: want 3, 5 or 7, of which a majority goes on, or 1", p.DataReplicas)
	case p.Spares > 0:
		return errors.New("spares: the majority that is left needs none")
	}
	_, _, err := swarmPool(p, v)
	return err
}
