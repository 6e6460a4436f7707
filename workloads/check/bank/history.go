package bank

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// event is a transaction as its client saw it: what it read, by the transactions that wrote that,
// and what it changed. All that it changes it has read, or made.
type event[R ~uint64] struct {
	id         uint64
	client     string
	begin, end time.Duration // end: 0 where it is not known whether it took effect
	reads      map[R]uint64
	writes     map[R]bool // true: it freed the object
	made       map[R]bool
	done       bool // it took effect, says its client
	refused    bool // it had no effect, says its client
}

func (e *event[R]) String() string {
	return fmt.Sprintf("%d (%s, %v to %v, reads %v, writes %v, makes %v)", e.id, e.client, e.begin, e.end, e.reads,
		e.writes, e.made)
}

// history is all that clients did. Transaction 0 gave the roots their data.
type history[R ~uint64] struct {
	events []*event[R]
	final  map[R]uint64 // the writer of what is there in the end
}

// check returns why no order of the transactions, each at one moment between its begin and its end,
// explains what they read. The order of an object's versions is known, since a transaction reads
// what it replaces; so it is enough to look for a cycle.
func (h *history[R]) check() error {
	byID := map[uint64]*event[R]{}
	for _, e := range h.events {
		byID[e.id] = e
	}
	effective, err := h.effective(byID)
	if err != nil {
		return err
	}
	next, err := h.versions(effective)
	if err != nil {
		return err
	}
	return acyclic(h.edges(effective, next))
}

// effective returns what took effect: what was answered so, and what was seen by others that took
// effect.
func (h *history[R]) effective(byID map[uint64]*event[R]) (map[uint64]*event[R], error) {
	found := map[uint64]*event[R]{}
	var seen []uint64
	for _, e := range h.events {
		if e.done {
			seen = append(seen, e.id)
		}
	}
	for r, id := range h.final {
		if id != 0 && byID[id] == nil {
			return nil, fmt.Errorf("%v was written by %d, which there never was", r, id)
		}
		seen = append(seen, id)
	}
	for len(seen) > 0 {
		id := seen[len(seen)-1]
		seen = seen[:len(seen)-1]
		e := byID[id]
		if e == nil || found[id] != nil {
			continue
		}
		if e.refused {
			return nil, fmt.Errorf("%v took effect, and was answered with an error", e)
		}
		found[id] = e
		for _, by := range e.reads {
			seen = append(seen, by)
		}
	}
	return found, nil
}

type version[R ~uint64] struct {
	of R
	by uint64
}

// versions returns which transaction replaced each version. Each is replaced once at most, and the
// last one is what is there.
func (h *history[R]) versions(effective map[uint64]*event[R]) (map[version[R]]uint64, error) {
	next := map[version[R]]uint64{}
	for _, e := range effective {
		for r := range e.writes {
			v := version[R]{r, e.reads[r]}
			if e.made[r] {
				v.by = e.id
				continue
			}
			if other, ok := next[v]; ok {
				return nil, fmt.Errorf("lost update: %v and %v replaced the same version of %v", e, effective[other], r)
			}
			next[v] = e.id
		}
	}
	written := map[R]int{}
	for v := range next {
		written[v.of]++
	}
	for r, by := range h.final { // from the first version to the last, and none is left
		steps := 0
		for e := effective[by]; e != nil && !e.made[r]; e = effective[e.reads[r]] {
			if _, ok := e.writes[r]; !ok {
				return nil, fmt.Errorf("half a transaction: %v says that %v wrote it", r, e)
			}
			steps++
		}
		if steps != written[r] {
			return nil, fmt.Errorf("lost: %v was written %d times, and %d led to what is there", r, written[r], steps)
		}
	}
	for _, e := range effective {
		for r, freed := range e.writes {
			if _, there := h.final[r]; !there && !freed && next[version[R]{r, e.id}] == 0 {
				return nil, fmt.Errorf("lost: %v of %v is not there, and was not freed", r, e)
			}
		}
	}
	return next, nil
}

// edges returns which transaction comes before which.
func (h *history[R]) edges(effective map[uint64]*event[R], next map[version[R]]uint64) map[uint64][]uint64 {
	before := map[uint64][]uint64{}
	ids := slices.Sorted(maps.Keys(effective))
	for _, id := range ids {
		e := effective[id]
		for r, by := range e.reads {
			before[by] = append(before[by], id)
			if n, ok := next[version[R]{r, by}]; ok && n != id {
				before[id] = append(before[id], n)
			}
		}
		for _, other := range ids {
			if o := effective[other]; e.end != 0 && e.end < o.begin {
				before[id] = append(before[id], other)
			}
		}
	}
	return before
}

func acyclic(before map[uint64][]uint64) error {
	const open, closed = 1, 2
	state := map[uint64]int{}
	var path []uint64
	var visit func(id uint64) error
	visit = func(id uint64) error {
		switch state[id] {
		case open:
			return fmt.Errorf("not serializable: a cycle of %v", path[slices.Index(path, id):])
		case closed:
			return nil
		}
		state[id] = open
		path = append(path, id)
		for _, n := range before[id] {
			if err := visit(n); err != nil {
				return err
			}
		}
		path = path[:len(path)-1]
		state[id] = closed
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if err := visit(id); err != nil {
			return err
		}
	}
	return nil
}
