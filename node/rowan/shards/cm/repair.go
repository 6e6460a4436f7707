package cm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/farkv/farkv/node/rowan/shards"
)

// compare stores the configuration that follows a comparison, once all complete replicas have
// reported their digests. Replicas that differ are copied anew. Digests of a crashed manager are
// lost; its successor collects them again.
func (m *Manager) compare(answers []*answer) (more bool, err error) {
	m.collect(answers)
	next, differ, err := m.c.Compared(m.digests)
	switch {
	case errors.Is(err, shards.ErrRefused):
		return false, nil
	case err != nil:
		return false, err
	case m.o.Intact && len(differ) > 0:
		return false, fmt.Errorf("compare replicas in term %d: %s", m.c.Term, compared(differ))
	}
	return true, m.store(next, compared(differ))
}

// repair stores the configuration without the replicas in which servers have met damage, as long as
// others are complete. A report of another term does not count: the replica may have been copied
// anew since.
func (m *Manager) repair(answers []*answer) (more bool, err error) {
	var damaged []shards.Replica
	at := map[shards.Replica]uint64{}
	for i, a := range answers {
		if a == nil || a.term != m.c.Term {
			continue
		}
		for _, d := range a.Damaged {
			r := shards.Replica{Shard: d.Shard, Node: m.c.Members[i].Node}
			damaged, at[r] = append(damaged, r), d.Offset
		}
	}
	if len(damaged) == 0 {
		return false, nil
	}
	next, left, err := m.c.Damaged(damaged)
	switch {
	case err != nil || len(left) == 0:
		return false, err
	case m.o.Intact:
		return false, fmt.Errorf("serve in term %d: %s", m.c.Term, repaired(left, at))
	}
	return true, m.store(next, repaired(left, at))
}

// repaired describes, for an event, which replicas are left out and where the damaged record was.
func repaired(left []shards.Replica, at map[shards.Replica]uint64) string {
	return anew(left, func(r shards.Replica) string { return fmt.Sprintf("%s at %#x", r, at[r]) })
}

// collect takes the digests from answers of this very term: in another term replicas may have been
// given more.
func (m *Manager) collect(answers []*answer) {
	if m.comparing != m.c.Term {
		m.comparing, m.digests = m.c.Term, map[shards.Replica]shards.Digest{}
	}
	for i, a := range answers {
		if a == nil || a.term != m.c.Term {
			continue
		}
		for _, d := range a.Digests {
			m.digests[shards.Replica{Shard: d.Shard, Node: m.c.Members[i].Node}] = d.Digest
		}
	}
}

// compared describes the result of a comparison for an event.
func compared(differ []shards.Replica) string {
	if len(differ) == 0 {
		return "all replicas have the same"
	}
	return anew(differ, shards.Replica.String)
}

// anew names the replicas that are copied anew, up to four of them.
func anew(damaged []shards.Replica, name func(shards.Replica) string) string {
	const most = 4
	var names []string
	for _, r := range damaged[:min(most, len(damaged))] {
		names = append(names, name(r))
	}
	if more := len(damaged) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "damaged, copied anew: " + strings.Join(names, ", ")
}
