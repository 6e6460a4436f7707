package cm

import (
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards"
)

// silence is of a server that leaves questions unanswered.
type silence struct {
	since time.Duration // the first of these was asked
	asked int
}

// leastAsked is how many questions a server leaves unanswered at least before it counts as one that
// hangs: the manager may have stood still, and not the server.
const leastAsked = 5

// listen notes which servers are silent, and which have ended: those answer nothing else.
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

// Hung implements cluster.Accuser: it names a server that has ended by itself. Of those that hang
// it names the one that has been silent for longest, if that is too long. Others may be silent
// since they wait for that one to take a write, and have their time from then on. A server without
// which shards would be lost is waited for, as are those of a pool that is being made. When none
// answers in a term that is committed, in which none waits for another, none has begun, or it is
// the manager that is cut off.
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

// worst returns the one of some servers that has been silent for longest, if no shard is lost
// without it.
func (m *Manager) worst(v rdma.View, some func(node int) bool) int {
	worst := shards.None
	for _, member := range m.c.Members {
		n := member.Node
		if !some(n) || v.Members[n].Gone || worst != shards.None && m.silent[n].since >= m.silent[worst].since {
			continue
		}
		if next, err := m.c.Fail(n); err == nil && len(next.Lost()) == len(m.c.Lost()) {
			worst = n
		}
	}
	return worst
}
