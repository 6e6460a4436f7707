package shards

import (
	"cmp"
	"slices"
)

// PlanOptions shape a Planner. Zero values mean defaults.
type PlanOptions struct {
	// Over is the load, in percent of the mean, above which a server is overloaded, and Toward the one
	// at which it has moved enough; 130 and 105 by default, as in the paper.
	Over, Toward uint64
	// Least is the mean load of servers in a period below which nothing moves: 1000 by default. With
	// fewer requests some server is above the others by chance.
	Least uint64
	// Pause is how many periods are left out behind one with a migration: 2 by default. The first one
	// is of both distributions.
	Pause int
}

// Load is what the workers of a shard's primary counted in a period (500 ms in the paper).
type Load struct {
	Requests uint64 // that they received
	Writes   uint64 // replication writes that they sent to each other replica
}

// maxLoad bounds counts, so that sums of all shards in percent fit into 64 bits.
const maxLoad = 1 << 40

// Planner finds the moves that even the servers' loads out (4.6). It is deterministic: of equal
// choices the lowest numbers are taken.
//
// Moves come to an end while loads stay as they are. A move takes d from a server with load x and
// gives it to one with y, and y + d < x, so that the sum of the squares of all loads falls, by 2d(x
// - y - d). With loads that change a little they come to an end, too: a server moves nothing unless
// its load, and those of the servers that take it, are lower afterwards than its load was by
// Toward's distance from the mean. So a shard that no server has room for stays where it is.
type Planner struct {
	o    PlanOptions
	rest int // periods that are left out yet
}

// NewPlanner returns a planner which leaves out the periods of a pause first, since it does not
// know what moved.
func NewPlanner(o PlanOptions) *Planner {
	set := func(n *uint64, v uint64) {
		if *n == 0 {
			*n = v
		}
	}
	set(&o.Over, 130)
	set(&o.Toward, 105)
	set(&o.Least, 1000)
	if o.Pause == 0 {
		o.Pause = 2
	}
	return &Planner{o: o, rest: o.Pause}
}

// Plan returns the moves to begin at the end of a period, given the loads of all shards in it, and
// the servers that have no room for another shard: none of two is of one shard. It is to be called
// for each period.
func (p *Planner) Plan(c *Config, loads []Load, full ...int) (moves []Move) {
	if !c.Committed || slices.ContainsFunc(c.Shards, c.moves) {
		p.rest = p.o.Pause
		return nil
	}
	if p.rest > 0 {
		p.rest--
		return nil
	}
	b := newBalance(c, loads, p.o)
	b.full = full
	if b.sum < p.o.Least*uint64(len(b.at)) {
		return nil
	}
	for _, place := range b.overloaded() {
		moves = append(moves, b.relieve(place)...)
	}
	if len(moves) > 0 {
		p.rest = p.o.Pause
	}
	return moves
}

// moves reports whether a replica of a shard moves, and is not one that was missing.
func (c *Config) moves(s Shard) bool { return s.Source != None || len(s.Replicas()) > c.Replication }

// balance is the loads of servers, as moves change them.
type balance struct {
	c     *Config
	o     PlanOptions
	loads []Load
	moved []bool   // by shard
	at    []uint64 // by place of the member
	sum   uint64
	full  []int // servers that take no shard which they do not have
}

func newBalance(c *Config, loads []Load, o PlanOptions) *balance {
	b := &balance{c: c, o: o, loads: make([]Load, len(c.Shards)), moved: make([]bool, len(c.Shards))}
	b.at = make([]uint64, len(c.Members))
	for i := range c.Shards {
		b.loads[i] = Load{min(loads[i].Requests, maxLoad), min(loads[i].Writes, maxLoad)}
		for _, node := range c.Shards[i].Replicas() {
			n := b.loads[i].of(node == c.Shards[i].Primary)
			b.at[c.place(node)] += n
			b.sum += n
		}
	}
	return b
}

// overloaded returns the places of servers that are, those with the highest load first.
func (b *balance) overloaded() (places []int) {
	for place, load := range b.at {
		if b.above(load, b.o.Over) {
			places = append(places, place)
		}
	}
	slices.SortStableFunc(places, func(x, y int) int { return cmp.Compare(b.at[y], b.at[x]) })
	return places
}

// of returns the load of one replica.
func (l Load) of(primary bool) uint64 {
	if primary {
		return l.Requests
	}
	return l.Writes
}

// above reports whether a server's load is above a percentage of the mean.
func (b *balance) above(load, percent uint64) bool {
	return load*uint64(len(b.at))*100 > percent*b.sum
}

// choice is a move, and what it does.
type choice struct {
	Move
	by    uint64 // the load that goes
	worst uint64 // the higher load of both servers afterwards
}

// relieve moves replicas away from an overloaded server, until its load is near the mean or none
// helps, and returns the moves. With too little won it moves none.
func (b *balance) relieve(from int) (moves []Move) {
	before, worst := b.at[from], uint64(0)
	was := slices.Clone(b.at)
	for b.above(b.at[from], b.o.Toward) {
		best, ok := b.best(from)
		if !ok {
			break
		}
		to := b.c.place(best.To)
		b.at[from] -= best.by
		b.at[to] += best.by
		b.moved[best.Shard] = true
		moves, worst = append(moves, best.Move), max(worst, b.at[to])
	}
	worst = max(worst, b.at[from])
	if won := before - worst; won*uint64(len(b.at))*100 < (b.o.Toward-100)*b.sum {
		b.at = was
		for _, m := range moves {
			b.moved[m.Shard] = false
		}
		return nil
	}
	return moves
}

// best returns the move away from a server after which the higher load of both servers is the
// lowest, and lower than the server's is. The target is below the mean, and the shard is not hotter
// than the mean.
func (b *balance) best(from int) (best choice, ok bool) {
	best.worst = b.at[from]
	node := b.c.Members[from].Node
	for shard := range b.c.Shards {
		s := &b.c.Shards[shard]
		if b.moved[shard] || !s.settled() || !s.Has(node) {
			continue
		}
		for to, load := range b.at {
			m := Move{shard, node, b.c.Members[to].Node}
			by := b.by(m)
			if load*uint64(len(b.at)) >= b.sum || by == 0 || b.above(by, 100) || !b.c.movable(m) ||
				slices.Contains(b.full, m.To) && !s.Has(m.To) {
				continue
			}
			if worst := max(b.at[from]-by, load+by); worst < best.worst {
				best, ok = choice{m, by, worst}, true
			}
		}
	}
	return best, ok
}

// by returns the load that goes from one server to the other with a move; 0: none, or the other
// way.
func (b *balance) by(m Move) uint64 {
	s, l := &b.c.Shards[m.Shard], b.loads[m.Shard]
	primary := s.Primary == m.From
	gone := l.of(primary)
	if s.Has(m.To) { // they change places
		return gone - min(gone, l.Writes)
	}
	return gone
}
