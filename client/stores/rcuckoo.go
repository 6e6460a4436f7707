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
	"github.com/farkv/farkv/node/rdma"
)

func init() { register(rcuckooKind()) }

const (
	maxRcuckooPair = 1 << 20
	// stuckFor is the default of failure-timer. On a busy machine a client may stand still for much
	// longer than the paper's 100 ms. For one that the pool says is dead half of it is enough.
	stuckFor = 500 * time.Millisecond
)

const (
	keyBytes   = "key-bytes"
	valueBytes = "value-bytes"
)

const ticketless = "ticketless"

var rcuckooOptions = []Option{
	cacheOption(rcuckoo.DefaultCache),
	{Name: "failure-timer", When: Opened, Type: Duration, Default: stuckFor, Min: 1,
		Doc: "failure timer of a lock holder that makes no progress"},
	{Name: ticketless, When: Opened, Type: Bool, Default: false,
		Doc: "try again for locks, as in RCuckoo's paper, and take no tickets"},
	{Name: "levels", Type: Int, Default: 0, Max: rcuckoo.MaxLevels,
		Doc: "how many times a full table may double; it begins with room for the records"},
	{Name: "table", Doc: "how the tables are shaped", Parts: tableOptions(rcuckoo.Most())},
}

// tableOptions shape the tables, each up to what most has.
func tableOptions(most rcuckoo.Shape) []Option {
	count := func(name string, usual any, max int, doc string) Option {
		o := Option{Name: name, Type: Int, Min: 1, Max: float64(max), Doc: doc}
		if text, derived := usual.(string); derived {
			o.Derived = text
		} else {
			o.Default = usual
		}
		return o
	}
	inline := count("inline-bytes", rcuckoo.DefaultInline, *most.InlineBytes, "longest value in its row")
	inline.Min = 0
	key := count(keyBytes, fmt.Sprintf("the records', %d at least", rcuckoo.DefaultKey), most.KeyBytes, "longest key")
	value := count(valueBytes, "the pair's", maxRcuckooPair, "longest value")
	value.Field = "extent_bytes"
	return []Option{
		count("entries", rcuckoo.DefaultEntries, most.Entries, "of a row"), key,
		inline, value, {Name: "f", Type: Float, Default: rcuckoo.DefaultF, Min: 1, Max: most.F,
			Doc: "of the dependent hashing"},
		count("rows-per-lock", "16, fewer of a small or growing table", most.RowsPerLock, "up to a shard's rows"),
		count("lock-bits", "63", most.LockBits, "of a word"),
		count("lock-words", "a bit for each lock", most.LockWords, "of a shard"),
		count("rows", "from the records", most.Rows, "of a shard"),
		count("shards", "one a node", most.Shards, "of a pool"),
	}
}

// crampedRcuckoo are shards of two rows of one entry each.
func crampedRcuckoo(levels int) Values {
	return Values{"rows": 2, "entries": 1, "rows-per-lock": 1, "levels": levels}
}

// CuckooTable is a table of RCuckoo that is not shared, to measure its hashing and its search
// alone.
type CuckooTable = rcuckoo.Table

// NewCuckooTable makes one.
var NewCuckooTable = rcuckoo.NewTable

func rcuckooKind() *Kind {
	return &Kind{
		Name: rcuckoo.Format,
		Doc: "RCuckoo (ATC 2025): cuckoo hashing in clients, 63 locks a masked CAS, dependent hashing, repair by " +
			"blocked clients",
		Size:   sizeRcuckoo,
		Format: formats(rcuckoo.Format, rcuckooPool, rcuckoo.Make),
		Open: func(ep rdma.Endpoint, o Options) (client.Store, error) {
			own := rcuckoo.Options{CacheBytes: new(o.Own.Int(CacheBytes)), Timeout: o.Timeout,
				Failure: o.Own.Duration("failure-timer"), Ticketless: o.Own.Bool(ticketless)}
			if o.Fabric != nil {
				own.Pool = o.Fabric
			}
			return opened(rcuckoo.Open(ep, own))
		},
		Version: rcuckoo.FormatVersion,
		Oldest:  rcuckoo.OldestVersion,
		Options: rcuckooOptions,

		Refuse:    refuseRcuckoo,
		Limits:    limitsOfRcuckoo,
		Device:    deviceRcuckoo,
		Recoverer: mends(rcuckoo.NewRecoverer),
		Describe:  rcuckoo.Describe,
		Paper:     map[string]int{"GET": 1, "UPDATE": 2, "DELETE": 2},
		Steps:     rcuckoo.Steps,
		MaxPair:   maxRcuckooPair,
		Slots:     true,
		Explored:  exploredCache,
		Cramped:   crampedRcuckoo,
		Growth:    "if it is made with --levels",
		Check:     rcuckoo.Check,
		Usage:     rcuckoo.Usage,

		Replicas: fmt.Sprintf("of each shard, up to %d", rcuckoo.MaxReplicas),
		Outlives: rcuckoo.Outlives,
		Fill:     rcuckoo.Fill,
	}
}

func rcuckooPool(p Params) (params rcuckoo.Params, memory uint64, err error) {
	own := p.Own
	return rcuckoo.Size(rcuckoo.Shape{
		Nodes: p.Nodes, Spares: p.Spares, Replicas: p.DataReplicas, Records: p.Records, Clients: p.Clients,
		Timeout: p.Timeout,
		Levels:  own.Int("levels"), Entries: own.Int("entries"),
		KeyBytes:    cmp.Or(own.Int(keyBytes), max(p.KeyBytes, rcuckoo.DefaultKey)),
		InlineBytes: new(own.Int("inline-bytes")),
		ValueBytes:  cmp.Or(own.Int(valueBytes), p.PairBytes), F: own.Float("f"), RowsPerLock: own.Int("rows-per-lock"),
		LockBits: own.Int("lock-bits"), LockWords: own.Int("lock-words"), Rows: own.Int("rows"),
		Shards: own.Int("shards"),
	})
}

// sizeRcuckoo fills in what p leaves open. There is one replica of everything, as in the paper,
// unless there are to be more.
func sizeRcuckoo(p Params) Params {
	// As long as values may be: keys do not count.
	return sizeBy(rcuckooPool, p, cmp.Or(p.Own.Int(valueBytes), p.PairBytes))
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
	params, _, err := rcuckooPool(p)
	if err != nil {
		return 0, 0, err
	}
	return rcuckoo.Device(params, p.Nodes)
}

func refuseRcuckoo(p Params) error {
	switch {
	case p.IndexReplicas != p.DataReplicas:
		return fmt.Errorf("%d replicas of the index and %d of the data: a shard's copies have both: want as many",
			p.IndexReplicas, p.DataReplicas)
	case p.DataReplicas > rcuckoo.MaxReplicas:
		return fmt.Errorf("%d replicas: want up to %d", p.DataReplicas, rcuckoo.MaxReplicas)
	case p.Spares > 0 && p.DataReplicas == 1:
		return errors.New("spares: no node can replace a dead one of which there was one replica: want 2 " +
			"replicas or more")
	}
	_, _, err := rcuckooPool(p)
	if err != nil { // Check says what kind of error it is
		return errors.New(strings.TrimPrefix(err.Error(), rcuckoo.ErrParams.Error()+": "))
	}
	return nil
}
