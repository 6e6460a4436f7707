package ops

import (
	"fmt"
	"strings"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
)

// Margin says how many more memory nodes a pool outlives. Two things bound that: the nodes' own agreement, for which a
// majority of those with a voice has to live, and the store's copies. The first seven nodes have a voice, spares and
// witnesses too. That does not change in a pool's life: a spare that takes a dead node's place adds no voice.
type Margin struct {
	// MayDie is how many more nodes may die at once, whichever these are, so that the pool goes on and has all its data.
	// 0 where even that is not so now.
	MayDie int     `json:"more_nodes_may_die"`
	Voices *Voices `json:"voices,omitempty"` // nil: the pool's nodes are no processes
	Copies *Bound  `json:"copies,omitempty"` // nil: not known
}

// Voices are the nodes that have a voice.
type Voices struct {
	Nodes  int `json:"nodes"`  // when the pool was made
	Live   int `json:"live"`   // that answer, and that the view has
	Needed int `json:"needed"` // a majority of Nodes
}

// Bound is how many nodes the copies of a store outlive.
type Bound struct {
	MayDie   int  `json:"more_nodes_may_die"` // negative: something cannot be had already
	Majority bool `json:"majority,omitempty"` // of the copies has to be left, not one
}

// minority is what is true of a pool in which fewer nodes with a voice answer than have to.
const minority = "too few of its nodes are left for it to go on, and 'farkv recover' can do nothing: if the others only cannot be " +
	"reached it goes on when they are; if they died it has ended: 'farkv down --force' removes it, 'farkv up' makes another"

// margin computes how many more nodes may die. Every answer that tells of it comes from here.
func margin(v *Voices, copies *Bound) *Margin {
	m := &Margin{Voices: v, Copies: copies, MayDie: -1}
	least := func(n int) {
		if n = max(n, 0); m.MayDie < 0 || n < m.MayDie {
			m.MayDie = n
		}
	}
	if v != nil {
		least(v.Live - v.Needed)
	}
	if copies != nil {
		least(copies.MayDie)
	}
	if m.MayDie < 0 {
		return nil
	}
	return m
}

// voicesOf counts voices; nil: the nodes are no processes, or tell of no pool.
func voicesOf(all []Served) *Voices {
	v := new(Voices)
	for _, s := range all {
		if s.Voice {
			v.Nodes++
			if s.Reachable && s.InPool && !s.Expelled {
				v.Live++
			}
		}
	}
	if v.Nodes == 0 {
		return nil
	}
	v.Needed = v.Nodes/2 + 1
	return v
}

// copiesOf asks the store. Nodes that do not answer, or belong to the pool no more, count as dead.
func copiesOf(p *stores.Pool, nodes []Node) *Bound {
	if p.Kind.Outlives == nil {
		return nil
	}
	n, err := p.Kind.Outlives(p.Fabric, func(node int) bool {
		s := nodes[node]
		return !s.Up || s.Served != nil && (!s.Reachable || !s.InPool || s.Expelled)
	})
	if err != nil {
		return nil
	}
	return &Bound{MayDie: n, Majority: p.Kind.Majority}
}

// marginOf is the margin of an open pool.
func marginOf(p *stores.Pool) *Margin {
	s := &State{Pool: p.Address}
	s.Nodes, _ = nodesOf(p.Fabric)
	s.addServed(p.Fabric)
	return s.margin(p)
}

// margin is that of the pool's state, whose nodes are known; p is nil when it cannot be opened.
func (s *State) margin(p *stores.Pool) *Margin {
	all := append([]Served{}, s.Witnesses...)
	for _, n := range s.Nodes {
		if n.Served != nil {
			all = append(all, *n.Served)
		}
	}
	if p == nil {
		return margin(voicesOf(all), nil)
	}
	return margin(voicesOf(all), copiesOf(p, s.Nodes))
}

// ended reports whether so few nodes with a voice are left that the pool does not go on.
func (m *Margin) ended() bool { return m != nil && m.Voices != nil && m.Voices.Live < m.Voices.Needed }

func (m *Margin) String() string {
	if m == nil {
		return "not known"
	}
	var why []string
	if v := m.Voices; v != nil {
		why = append(why, fmt.Sprintf("%d of %s that have a voice live, and %d have to", v.Live, plural(v.Nodes, "node", "nodes"), v.Needed))
	}
	if b := m.Copies; b != nil {
		why = append(why, b.String())
	}
	text := fmt.Sprintf("%s may die: %s", plural(m.MayDie, "more node", "more nodes"), strings.Join(why, "; "))
	switch {
	case m.ended():
		text += "; " + minority
	case m.MayDie == 0 && m.Voices != nil && m.Voices.Live == m.Voices.Needed && m.Voices.Nodes > 1:
		text += "; 'farkv recover' adds none: with the next death the pool ends"
	}
	return text
}

func (b *Bound) String() string {
	keeps := "a copy"
	if b.Majority {
		keeps = "a majority of its copies"
	}
	switch {
	case b.MayDie < 0:
		return "some data cannot be had: too few of its copies are left"
	case b.MayDie == 0 && b.Majority:
		return "some data has no more than a bare majority of its copies"
	case b.MayDie == 0:
		return "some data has one copy"
	}
	return fmt.Sprintf("all data keeps %s after %s", keeps, plural(b.MayDie, "death", "deaths"))
}

// mainPool returns the number of a node whose pool most nodes have; false: none has one.
func mainPool(infos []fabrics.NodeInfo) (first int, ok bool) {
	votes := map[string]int{}
	for n, i := range infos {
		if i.Pool == nil {
			continue
		}
		if votes[i.Pool.ID]++; !ok || votes[i.Pool.ID] > votes[infos[first].Pool.ID] {
			first, ok = n, true
		}
	}
	return first, ok
}
