package state

import (
	"sync"

	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// Damage is what a server's tasks have met of damaged entries, for the manager.
type Damage struct {
	// mu guards the fields below. It is held over no wait.
	mu sync.Mutex
	// The last term in which a task met damage, and one entry for each shard in which it did.
	term uint64
	met  []cm.Damage
}

// Note notes that a task has met a damaged entry of a shard in a term. One entry a shard is enough,
// and only the latest term counts.
func (d *Damage) Note(term uint64, shard int, at uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if term > d.term {
		d.term, d.met = term, nil
	}
	for _, m := range d.met {
		if m.Shard == shard {
			return
		}
	}
	if term == d.term {
		d.met = append(d.met, cm.Damage{Shard: shard, Offset: at})
	}
}

// In returns what was noted in a term. The manager leaves the replica out in the next one.
func (d *Damage) In(term uint64) []cm.Damage {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.term != term {
		return nil
	}
	return d.met
}
