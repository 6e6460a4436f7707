package stores

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

func init() { register(rcuckooKind()) }

const (
	maxRcuckooPair = 1 << 20
	// stuckFor is the failure timer of clients that the pool takes to be alive: on a machine that is busy one may stand still for
	// much longer than the paper's 100 ms. Those that died the pool knows.
	stuckFor = 500 * time.Millisecond
)

var heedsOfRcuckoo = Heeds{CacheBytes: rcuckoo.DefaultCache,
	Replicas: fmt.Sprintf("of each shard, up to %d", rcuckoo.MaxReplicas)}

func rcuckooKind() *Kind {
	return &Kind{
		Name: rcuckoo.Format,
		Doc:  "RCuckoo (ATC 2025): cuckoo hashing in clients, 63 locks a masked CAS, dependent hashing, repair by whoever is stuck",
		Size: sizeRcuckoo,
		Format: func(f rdma.Fabric, p Params) error {
			p = sizeRcuckoo(p)
			p.Nodes = f.Nodes()
			params, _, err := rcuckoo.Size(rcuckooShape(p))
			if err != nil {
				return fmt.Errorf("make an rcuckoo pool: %w", err)
			}
			return rcuckoo.Make(f, params)
		},
		Open: func(ep rdma.Endpoint, o Options) (client.Store, error) {
			own := rcuckoo.Options{CacheBytes: o.CacheBytes, Timeout: o.Timeout, Failure: cmp.Or(o.Failure, stuckFor)}
			if o.Fabric != nil {
				own.Pool = o.Fabric
			}
			s, err := rcuckoo.Open(ep, own)
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		Version: rcuckoo.FormatVersion,
		Heeds:   heedsOfRcuckoo,

		Refuse: refuseRcuckoo,
		Limits: limitsOfRcuckoo,
		Device: deviceRcuckoo,
		Mender: func(ep rdma.Endpoint) (cluster.Mender, error) {
			m, err := rcuckoo.NewMender(ep)
			if err != nil {
				return nil, err
			}
			return m, nil
		},
		Steps:   rcuckoo.Steps,
		MaxPair: maxRcuckooPair,
		Slots:   true,
		Grows:   true,
		Check:   rcuckoo.Check,
		Usage:   rcuckoo.Usage,

		Outlives: rcuckoo.Outlives,
		Fill:     rcuckoo.Fill,
	}
}

func rcuckooShape(p Params) rcuckoo.Shape {
	s := p.Table
	s.Nodes, s.Spares, s.Replicas, s.Records, s.Clients, s.Timeout = p.Nodes, p.Spares, p.DataReplicas, p.Records, p.Clients, p.Timeout
	s.ValueBytes = cmp.Or(s.ValueBytes, p.PairBytes)
	return s
}

// sizeRcuckoo fills in what p leaves open. There is one replica of everything, as in the paper, unless there are to be more.
func sizeRcuckoo(p Params) Params {
	p.DataReplicas = cmp.Or(p.DataReplicas, p.IndexReplicas, 1)
	p.IndexReplicas = cmp.Or(p.IndexReplicas, p.DataReplicas)
	p.PairBytes = cmp.Or(p.Table.ValueBytes, p.PairBytes, slotBytes) // as long as values may be, keys do not count
	p.defaults()
	if _, need, err := rcuckoo.Size(rcuckooShape(p)); err == nil {
		p.Memory = max(p.Memory, need)
	}
	return p
}

// limitsOfRcuckoo reads what a pool takes from the parameters in its header.
func limitsOfRcuckoo(h node.Header) (Limits, error) {
	var p rcuckoo.Params
	if err := json.Unmarshal(h.Params, &p); err != nil {
		return Limits{}, fmt.Errorf("read the parameters of an rcuckoo pool: %w", err)
	}
	return Limits{Key: p.KeyBytes, Value: p.MaxValue()}, nil
}

func deviceRcuckoo(p Params) (offset, bytes uint64, err error) {
	params, _, err := rcuckoo.Size(rcuckooShape(p))
	if err != nil {
		return 0, 0, err
	}
	return rcuckoo.Device(params, p.Nodes)
}

func refuseRcuckoo(p Params) error {
	switch {
	case p.IndexReplicas != p.DataReplicas:
		return fmt.Errorf("%d replicas of the index and %d of the data: a shard's copies have both: want as many", p.IndexReplicas, p.DataReplicas)
	case p.DataReplicas > rcuckoo.MaxReplicas:
		return fmt.Errorf("%d replicas: want up to %d", p.DataReplicas, rcuckoo.MaxReplicas)
	case p.Spares > 0 && p.DataReplicas == 1:
		return errors.New("spares: nobody takes the place of a node that died, of which nothing is left: want 2 replicas or more")
	case p.NodeCentric:
		return errors.New("node-centric allocation: clients take memory by themselves")
	}
	_, _, err := rcuckoo.Size(rcuckooShape(p))
	if err != nil { // Check says what kind of error it is
		return errors.New(strings.TrimPrefix(err.Error(), rcuckoo.ErrParams.Error()+": "))
	}
	return nil
}
