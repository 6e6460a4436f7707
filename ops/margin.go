package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops/format"
)

// Margin is how many more memory nodes may die before a pool stops. Two limits apply: a majority of
// the voters has to live, and the store needs enough copies. The first seven nodes are voters,
// spares and witnesses included. The voters of a pool never change: a spare that replaces a dead
// node does not become one.
type Margin struct {
	// MayDie is how many more nodes may die at once, any of them, while the pool goes on with all
	// its data. It is also 0 when the pool does not do so now.
	MayDie int     `json:"more_nodes_may_die"`
	Voters *Voters `json:"voices,omitempty"` // nil: the pool's nodes are no processes
	Copies *Bound  `json:"copies,omitempty"` // nil: not known

	pool string // as hints name it
}

// Voters counts the voters of a pool.
type Voters struct {
	Nodes  int `json:"nodes"`  // when the pool was made
	Live   int `json:"live"`   // that answer, and that the view has
	Needed int `json:"needed"` // a majority of Nodes
}

// Bound is how many dead nodes the copies of a store tolerate.
type Bound struct {
	MayDie   int  `json:"more_nodes_may_die"` // negative: something cannot be had already
	Majority bool `json:"majority,omitempty"` // of two or more copies has to be left, not one
}

// minority is the hint for a pool in which fewer voters answer than a majority.
func minority(pool string) string {
	return fmt.Sprintf("too few of its nodes are left for it to go on, and 'farkv recover %[1]s' can do nothing: if "+
		"the others only cannot be reached it goes on when they are; if they died it has ended: 'farkv down --force "+
		"%[1]s' removes it, 'farkv up' makes another", pool)
}

// errLost is wrapped when recovery has done all that it can, and some data has too few copies left.
var errLost = errors.New("some data cannot be had: too few of its copies are left")

// lostHint is the hint for a pool that has lost some of its data.
func lostHint(pool string) string {
	return fmt.Sprintf("what only dead nodes had stays lost, and 'farkv recover %[1]s' does not bring it back; "+
		"'farkv check %[1]s' walks what is left, 'farkv down --force %[1]s' removes the pool", pool)
}

// margin computes how many more nodes may die. All commands that report this number call margin.
func margin(v *Voters, copies *Bound) *Margin {
	m := &Margin{Voters: v, Copies: copies, MayDie: -1}
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

// VotersOf counts the voters. nil: the nodes are no processes, or belong to no pool.
func VotersOf(all []Served) *Voters {
	v := new(Voters)
	for _, s := range all {
		if s.Voter {
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

// copiesOf returns the bound of the store. Nodes that do not answer, or left the pool, count as
// dead.
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
	return &Bound{MayDie: n, Majority: p.Kind.Majority && ShapeOf(p).Replicas > 1}
}

// Shape are parameters that have the same name in all stores that have them; 0: a store does not.
type Shape struct {
	Replicas int `json:"replicas"`
	Spares   int `json:"spares"`
}

// ShapeOf returns the shape of a pool.
func ShapeOf(p *stores.Pool) (s Shape) {
	_ = json.Unmarshal(p.Header.Params, &s) // opening the pool reports what is wrong with its header
	return s
}

// NodeStates returns the part of an open pool's State about its nodes: these with what their
// processes report, the witnesses, and the margin.
func NodeStates(p *stores.Pool) *State {
	s := &State{Pool: p.Address}
	s.Nodes, _ = NodesOf(p.Fabric)
	s.addServed(p.Fabric)
	s.Margin = s.ComputeMargin(p)
	return s
}

// ComputeMargin returns the margin of the pool. s.Nodes is complete already. p is nil when the pool
// cannot be opened.
func (s *State) ComputeMargin(p *stores.Pool) *Margin {
	all := append([]Served{}, s.Witnesses...)
	for _, n := range s.Nodes {
		if n.Served != nil {
			one := *n.Served
			one.Expelled = one.Expelled || n.Gone // one that was cut off meanwhile may not know
			all = append(all, one)
		}
	}
	var copies *Bound
	if p != nil {
		copies = copiesOf(p, s.Nodes)
	}
	m := margin(VotersOf(all), copies)
	if m != nil {
		m.pool = ShortName(s.Pool)
	}
	return m
}

// Ended reports whether too few voters are left for the pool to go on.
func (m *Margin) Ended() bool { return m != nil && m.Voters != nil && m.Voters.Live < m.Voters.Needed }

// Lost reports whether some data has too few copies left to be read.
func (m *Margin) Lost() bool { return m != nil && m.Copies != nil && m.Copies.MayDie < 0 }

func (m *Margin) String() string {
	if m == nil {
		return "not known"
	}
	var why []string
	if v := m.Voters; v != nil {
		why = append(why, fmt.Sprintf("%d of %s live, and %d must", v.Live, format.Plural(v.Nodes, "voter", "voters"),
			v.Needed))
	}
	if b := m.Copies; b != nil {
		why = append(why, b.String())
	}
	text := fmt.Sprintf("%s may die: %s", format.Plural(m.MayDie, "more node", "more nodes"), strings.Join(why, "; "))
	switch {
	case m.Ended():
		text += "; " + minority(m.pool)
	case m.Lost():
		text += "; " + lostHint(m.pool)
	case m.MayDie == 0 && m.Voters != nil && m.Voters.Live == m.Voters.Needed && m.Voters.Nodes > 1:
		text += fmt.Sprintf("; 'farkv recover %s' adds none: with the next death the pool ends", m.pool)
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
		return errLost.Error()
	case b.MayDie == 0 && b.Majority:
		return "some data has no more than a bare majority of its copies"
	case b.MayDie == 0:
		return "some data has one copy"
	}
	return fmt.Sprintf("all data keeps %s after %s", keeps, format.Plural(b.MayDie, "death", "deaths"))
}

// mainPool returns the number of a node of the pool to which most nodes belong; false: none belongs
// to any.
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
