package stores

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman/original"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Process is what the workers of a process, or of a simulated compute node, share. The zero Process
// is ready; it is of one pool, and safe for concurrent use. Its workers die together: one that dies
// alone would leave the others behind what it has of it.
type Process struct {
	mu    sync.Mutex
	turns *localTurns
}

func init() { register(originalKind()) }

const handOvers = "hand-overs"

var originalOptions = []Option{
	cacheOption(original.DefaultCache),
	{Name: handOvers, When: Opened, Type: Int, Default: original.DefaultHands, Max: 1 << 10,
		Doc: "how often in a row a lock is handed over to a worker of the same process"},
	{Name: "tree", Doc: "how the tree is shaped", Parts: []Option{
		{Name: "node-bytes", Type: Int, Default: original.DefaultNode, Min: 256, Max: original.MaxNode,
			Doc: "of a node"},
		{Name: keyBytes, Type: Int, Derived: fmt.Sprintf("the records', %d at least", original.DefaultKey), Min: 1,
			Max: original.MaxKey, Doc: "longest key"},
		{Name: valueBytes, Type: Int, Derived: "the pair's", Min: 1, Max: original.MaxValue, Doc: "longest value"},
		{Name: "locks", Type: Int, Default: original.DefaultLocks, Min: 1, Max: original.MaxLocks,
			Doc: "words of device memory, a memory node"},
	}},
}

func originalKind() *Kind {
	return &Kind{
		Name: original.Format,
		Doc: "Sherman (SIGMOD 2022): an ordered B-link tree, with scans; a client that dies with a lock blocks " +
			"others until it is recovered",
		Size:   sizeOriginal,
		Format: formats(original.Format, originalPool, original.Make),
		Open: func(ep rdma.Endpoint, o Options) (client.Store, error) {
			own := original.Options{CacheBytes: new(o.Own.Int(CacheBytes)), Timeout: o.Timeout}
			own.Turns = turnsOf(o.Process, o.Own.Int(handOvers))
			return opened(original.Open(ep, own))
		},
		Version: original.FormatVersion,
		Options: originalOptions,

		Refuse:    refuseOriginal,
		Limits:    limitsOfOriginal,
		Device:    deviceOriginal,
		Recoverer: mends(original.NewRecoverer),
		Describe:  original.Describe,
		Steps:     original.Steps,
		MaxPair:   original.MaxValue,
		Slots:     true,
		Scans:     true,
		Baseline:  true,
		Contends:  true,
		Unmerged:  true,
		Explored:  exploredCache.With(Values{"node-bytes": 336, keyBytes: 40}), // of three entries: few keys split
		Check:     original.Check,
		Usage:     original.Usage,

		Replicas: "1",
		Outlives: original.Outlives,
		Fill:     original.Fill,
	}
}

// localTurns are the local locks of the workers of this process on a pool.
type localTurns struct {
	mu    sync.Mutex
	locks *original.LocalLocks
}

func (t *localTurns) Join(w *original.Waiter, lock uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.locks.Join(w, lock)
}

func (t *localTurns) Ahead(w *original.Waiter) (n int, word uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.locks.Ahead(w)
}

func (t *localTurns) HandsOver(w *original.Waiter) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.locks.HandsOver(w)
}

func (t *localTurns) Leave(w *original.Waiter, word uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.locks.Leave(w, word)
}

func (t *localTurns) Forget(lock, word uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.locks.Forget(lock, word)
}

func (t *localTurns) Unclaimed() (lock, word uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.locks.Unclaimed()
}

// turnsOf returns the local locks that workers of a process share; nil: a worker shares none.
func turnsOf(p *Process, hands int) original.Turns {
	if p == nil || hands == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.turns == nil {
		p.turns = &localTurns{locks: original.NewLocalLocks(hands)}
	}
	return p.turns
}

func originalPool(p Params) (params original.Params, memory uint64, err error) {
	own := p.Own
	return original.Size(original.Shape{
		Nodes: p.Nodes, Records: p.Records, Clients: p.Clients, Workers: p.Workers, Timeout: p.Timeout,
		NodeBytes: own.Int("node-bytes"), KeyBytes: cmp.Or(own.Int(keyBytes), max(p.KeyBytes, original.DefaultKey)),
		ValueBytes: cmp.Or(own.Int(valueBytes), p.PairBytes), Locks: own.Int("locks"),
	})
}

// sizeOriginal fills in what p leaves open. There is one copy of everything.
func sizeOriginal(p Params) Params {
	// As long as values may be: keys do not count.
	return sizeBy(originalPool, p, cmp.Or(p.Own.Int(valueBytes), p.PairBytes))
}

// limitsOfOriginal reads what a pool takes from the parameters in its header.
func limitsOfOriginal(h node.Header) (Limits, error) {
	var p original.Params
	if err := json.Unmarshal(h.Params, &p); err != nil {
		return Limits{}, fmt.Errorf("read the parameters of a %s pool: %w", original.Format, err)
	}
	return Limits{Key: p.KeyBytes, Value: p.ValueBytes}, nil
}

func deviceOriginal(p Params) (offset, bytes uint64, err error) {
	params, _, err := originalPool(p)
	if err != nil {
		return 0, 0, err
	}
	offset, bytes = original.Device(params)
	return offset, bytes, nil
}

func refuseOriginal(p Params) error {
	switch {
	case p.IndexReplicas != 1 || p.DataReplicas != 1:
		return errors.New("its nodes and values have one copy each: want 1 replica")
	case p.Spares > 0:
		return errors.New("spares: nothing is left of what a dead node had, and so no node takes its place")
	}
	if _, _, err := originalPool(p); err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), original.ErrParams.Error()+": "))
	}
	return nil
}
