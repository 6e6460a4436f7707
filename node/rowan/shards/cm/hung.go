package cm

import (
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards"
)

// silence is the state of a server that leaves questions unanswered.
type silence struct {
	// When the first of these questions had found no answer, on the manager's clock.
	since time.Duration
	// How many there are.
	asked int
}

// leastAsked is the number of questions that a server must leave unanswered before it counts as
// hung: the manager itself may have been stopped meanwhile, and not the server.
const leastAsked = 5

// listen notes which servers are silent, and which have ended by themselves. The answers of the
// latter are removed: they say nothing else.
func (m *Manager) listen(answers []*answer) {
	for i, a := range answers {
		node := m.c.Members[i].Node
		if a == nil {
			s := m.silent[node]
			if s.asked++; s.asked == 1 {
				s.since = m.ep.Now()
			}
			m.silent[node] = s
			continue
		}
		delete(m.silent, node)
		delete(m.ended, node)
		if a.ended != "" {
			m.ended[node], answers[i] = a.ended, nil
		}
	}
}

// Hung implements cluster.Accuser: it names a server to be expelled. A server that has ended by
// itself comes first. Among those that hang it names the one that has been silent for longest, if
// that is at least Options.Hung. Other servers may be silent because they wait for that one to take
// a write; so all counts begin again afterwards.
//
// A server is not named if shards would be lost without it, nor while the pool is being made. If no
// member answers in a committed term, in which no server waits for another, none is named: rather
// the manager is cut off, or no server has started yet.
func (m *Manager) Hung(v rdma.View) []int {
	if m.c == nil || m.c.Term == 1 && !m.c.Committed {
		return nil
	}
	if n := m.worst(v, func(n int) bool { return m.ended[n] != "" }); n != shards.None {
		clear(m.silent)
		return []int{n}
	}
	answered := func(s shards.Member) bool { return m.silent[s.Node].asked == 0 }
	if m.c.Committed && !slices.ContainsFunc(m.c.Members, answered) {
		return nil
	}
	now := m.ep.Now()
	n := m.worst(v, func(n int) bool {
		s := m.silent[n]
		return s.asked >= leastAsked && now-s.since >= m.o.Hung
	})
	if n == shards.None {
		return nil
	}
	clear(m.silent)
	return []int{n}
}

// worst returns the server that has been silent for longest, among those that some selects and
// without which no shard is lost; shards.None if there is none. Ties go to the lower node, so the
// choice does not depend on the order of a map.
func (m *Manager) worst(v rdma.View, some func(node int) bool) int {
	worst := shards.None
	for _, member := range m.c.Members {
		n := member.Node
		if !some(n) || v.Members[n].Gone || worst != shards.None && m.silent[n].since >= m.silent[worst].since {
			continue
		}
		// Without this server no shard may be lost that is not lost already.
		if next, err := m.c.Fail(n); err == nil && len(next.Lost()) == len(m.c.Lost()) {
			worst = n
		}
	}
	return worst
}
