package stores

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rowan"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/server"
	"github.com/farkv/farkv/node/telemetry"
)

func init() {
	for kind, doc := range map[kv.Kind]string{
		kv.Rowan: "Rowan-KV (OSDI 2023): servers beside the memory nodes, logs in persistent memory, replication by " +
			"one-sided appends",
		kv.RPC:    "Rowan-KV that replicates by messages to the backups' workers",
		kv.RWrite: "Rowan-KV that replicates by WRITEs, to a log for each worker of another server",
		kv.Batch:  "RWrite-KV that gathers several entries for one WRITE",
		kv.Share:  "Rowan-KV that replicates by WRITEs, to a log for each other server",
	} {
		register(rowanKind(kind, doc))
	}
}

const (
	serverShards  = "server-shards"
	serverWorkers = "server-workers"
	segmentBytes  = "segment-bytes"
)

var rowanOptions = []Option{
	{Name: serverShards, Type: Int, Default: rowan.DefaultShards, Min: 1, Max: 1 << 12,
		Doc: "shards of which each server is the primary in the beginning"},
	{Name: serverWorkers, Type: Int, Default: rowan.DefaultWorkers, Min: 1, Max: rowan.MaxWorkers,
		Doc: "threads of a server that serve requests, each those for keys of its own"},
	{Name: segmentBytes, Type: Bytes, Derived: "a 512th of a node's memory, up to 4MiB", Min: rowan.LeastSegment,
		Max: rowan.MaxSegment, Doc: "segments of the servers' logs"},
	{Name: keyBytes, Type: Int, Derived: fmt.Sprintf("the records', %d at least", rowan.DefaultKey), Min: 1,
		Max: rowan.MaxKey, Doc: "longest key"},
}

func rowanKind(kind kv.Kind, doc string) *Kind {
	k := &Kind{
		Name:     kind.String(),
		Doc:      doc,
		Baseline: kind != kv.Rowan,
		Version:  rowan.FormatVersion,
		Size:     func(p Params) Params { return sizeRowan(p, kind) },
		Refuse:   func(p Params) error { return refuseRowan(p, kind) },
		Format: formats(kind.String(), func(p Params) (rowan.Params, uint64, error) {
			params, memory, _, err := rowanPool(p, kind)
			return params, memory, err
		}, rowan.Make),
		Open: func(ep rdma.Endpoint, o Options) (client.Store, error) {
			var configs rowan.Configs
			if o.Fabric != nil {
				configs = o.Fabric
			}
			return opened(rowan.Open(ep, configs, kind, o.Timeout))
		},
		Serve: func(ep rdma.Endpoint, f rdma.Configs, node int) (Server, error) {
			s, err := rowan.Serve(ep, f, node)
			if err != nil {
				return nil, err
			}
			return rowanServer{s}, nil
		},
		Limits: limitsOfRowan,
		Room: func(p Params) (records, memory uint64) {
			return rowanShape(p, kind).Room(), wholeRowan(p, kind)
		},
		Describe: rowan.Describe,
		Paper:    map[string]int{"GET": 1, "UPDATE": 1, "INSERT": 1, "DELETE": 1},
		Steps:    rowan.Steps,
		MaxPair:  rowan.MaxPair,
		Slots:    true,
		Check:    rowan.Check,
		Usage:    rowan.Usage,

		Options:  rowanOptions,
		Replicas: fmt.Sprintf("of each shard, up to %d", rowan.MaxReplicas),
		Outlives: rowan.Outlives,
		Fill:     rowan.Fill,

		Configuration: rowan.Configuration,

		Recoverer: rowan.NewRecoverer, ExploredRecoverer: rowan.NewRestlessRecoverer, Durable: true,
	}
	return k
}

// rowanServer names what a server counts.
type rowanServer struct{ *server.Server }

func (s rowanServer) Counts(to []telemetry.Counter) []telemetry.Counter {
	stats := s.Stats()
	return append(to,
		telemetry.Counter{Name: "primaries", Count: uint64(stats.Primaries)},
		telemetry.Counter{Name: "backups", Count: uint64(stats.Backups)},
		telemetry.Counter{Name: "CommitVer lag", Count: stats.Lag},
		telemetry.Counter{Name: "keys in indexes", Count: uint64(stats.Items - stats.Tombs)},
		telemetry.Counter{Name: "tombstones", Count: uint64(stats.Tombs)},
		telemetry.Counter{Name: "segments cleaned", Count: stats.Cleaned},
		telemetry.Counter{Name: "entries moved", Count: stats.Moved})
}

func rowanPool(p Params, kind kv.Kind) (params rowan.Params, memory uint64, servers int, err error) {
	return rowan.Size(rowanShape(p, kind))
}

func rowanShape(p Params, kind kv.Kind) rowan.Shape {
	return rowan.Shape{
		Kind: kind, Nodes: p.Nodes, Memory: p.Memory, Records: p.Records, PairBytes: p.PairBytes,
		KeyBytes: cmp.Or(p.Own.Int(keyBytes), max(p.KeyBytes, rowan.DefaultKey)), Replicas: p.DataReplicas,
		Shards: p.Own.Int(serverShards), Workers: p.Own.Int(serverWorkers),
		SegmentBytes: p.Own.Int(segmentBytes), Timeout: p.Timeout,
	}
}

// wholeRowan returns how much memory a node needs for all records; 0: no amount is enough.
func wholeRowan(p Params, kind kv.Kind) uint64 {
	p.Memory = 0
	_, memory, _, err := rowanPool(p, kind)
	if err != nil {
		return 0
	}
	return memory
}

// sizeRowan fills in what p leaves open. A shard has three replicas, as in the paper, if there
// are as many nodes.
func sizeRowan(p Params, kind kv.Kind) Params {
	p.DataReplicas = cmp.Or(p.DataReplicas, p.IndexReplicas, min(3, cmp.Or(p.Nodes, 3)))
	p.IndexReplicas = cmp.Or(p.IndexReplicas, p.DataReplicas)
	p.PairBytes = cmp.Or(p.PairBytes, slotBytes)
	p.defaults()
	if _, need, servers, err := rowanPool(p, kind); err == nil {
		p.Memory, p.Servers = max(p.Memory, need), servers
	}
	return p
}

func refuseRowan(p Params, kind kv.Kind) error {
	switch {
	case p.IndexReplicas != p.DataReplicas:
		return fmt.Errorf("%d replicas of the index and %d of the data: a shard's replicas have both: want as many",
			p.IndexReplicas, p.DataReplicas)
	case p.Spares > 0:
		return errors.New("spares: no server takes another one's place")
	}
	if _, _, _, err := rowanPool(p, kind); err != nil { // Check says what kind of error it is
		why := strings.TrimPrefix(err.Error(), rowan.ErrParams.Error()+": ")
		if whole := wholeRowan(p, kind); p.Memory < whole {
			why += fmt.Sprintf(" (hint: %s a node have room for %d records of %d bytes)",
				BytesText((whole+1<<20-1)>>20<<20), p.Records, p.PairBytes)
		}
		return errors.New(why)
	}
	return nil
}

// limitsOfRowan reads what a pool takes from the parameters in its header.
func limitsOfRowan(h node.Header) (Limits, error) {
	var p rowan.Params
	if err := json.Unmarshal(h.Params, &p); err != nil {
		return Limits{}, fmt.Errorf("read the parameters of a rowan pool: %w", err)
	}
	return Limits{Key: p.KeyBytes, Value: p.PairBytes, Pair: p.PairBytes}, nil
}
