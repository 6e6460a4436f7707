package drivers

import (
	"sync"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Kept counts what a process does to keep a pool. It is safe for concurrent use; the zero value has
// counted nothing.
type Kept struct {
	mu     sync.Mutex
	counts [cluster.Whats + 1]uint64
	leads  bool
}

// Note counts an event; it is meant for cluster.Options.Log.
func (k *Kept) Note(e cluster.Event) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.counts[e.What]++
	switch e.What {
	case cluster.Elected:
		k.leads = true
	case cluster.Lost:
		k.leads = false
	}
}

// Leads reports whether the process was elected the pool's master and has not found since that
// another process is. A master that is stopped, or cut off from where masters are elected, finds
// that late.
func (k *Kept) Leads() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.leads
}

// Counts yields each kind of event and how many of it there were.
func (k *Kept) Counts(yield func(cluster.What, uint64) bool) {
	k.mu.Lock()
	counts := k.counts
	k.mu.Unlock()
	for what := 1; what <= cluster.Whats; what++ {
		if !yield(cluster.What(what), counts[what]) {
			return
		}
	}
}

// Inside returns the pool of a database of ours, and what this process does to keep it; false: it
// is no pool's.
func Inside(db Database) (f rdma.Fabric, kept *Kept, ok bool) {
	if d := poolOf(db); d != nil {
		return d.fabric, &d.kept, true
	}
	return nil, nil, false
}
