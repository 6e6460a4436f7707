package shards

import (
	"cmp"
	"slices"
)

// PlanOptions parameterize a Planner. Zero values mean defaults.
type PlanOptions struct {
	// Over is the load, in percent of the mean, above which a server is overloaded; Toward is the
	// load at which it has moved enough. The defaults are 130 and 105, as in the paper.
	Over, Toward uint64
	// Least is the mean load of servers, in requests a period, below which nothing moves; 1000 by
	// default. With fewer requests one server is above the others by chance.
	Least uint64
	// Pause is how many periods are ignored after one with a move; 2 by default. Counts of the
	// first of them belong to both distributions.
	Pause int
}

// Load is what the workers of a shard's primary counted in a period (500 ms in the paper).
type Load struct {
	// Requests that the primary received, and did not refuse since they would have to wait.
	Requests uint64
	// Writes that it sent to each other replica.
	Writes uint64
}

// maxLoad bounds counts, so that 100 times the sum over all shards fits into 64 bits.
const maxLoad = 1 << 40

// Planner finds moves that balance the loads of servers (4.6). It is deterministic: among equal
// choices it takes the lowest numbers.
//
// Moves come to an end while loads stay the same. A move takes d from a server with load x and
// gives it to one with load y, where y + d < x. So the sum of the squares of all loads falls by
// 2d(x - y - d). Moves also end if loads change a little: a server moves replicas only if
// afterwards its own load, and those of the servers that take them, are lower than its load was by
// at least Toward - 100 percent of the mean. So a shard that no server has room for stays where it
// is.
type Planner struct {
	o PlanOptions
	// Periods that are still to be ignored.
	rest int
}

// NewPlanner returns a planner. It ignores the periods of one pause first, since it does not know
// what was moved before.
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

// Plan returns the moves to begin at the end of a period. loads are the loads of all shards in that
// period, and full lists the servers without room for another shard. No two moves are of one shard.
// It must be called once each period: it counts the periods of the pause. While a term is not
// committed, or a move of an earlier plan goes on, nothing is planned: counts would be of two
// distributions.
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
	// Too few requests to tell a hot shard from chance.
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

// moves reports whether a replica of a shard is being moved, as opposed to one that is missing and
// replaced.
func (c *Config) moves(s Shard) bool { return s.Source != None || len(s.Replicas()) > c.Replication }

// balance holds the loads of servers, as the moves that are planned change them. It plans on copies
// of the counts: the configuration changes by the moves that Plan returns, and no sooner.
type balance struct {
	c *Config
	o PlanOptions
	// By shard.
	loads []Load
	// By shard: whether a move is planned for it. At most one is.
	moved []bool
	// By the member's place: the load of its server.
	at []uint64
	// The sum of at. No move changes it.
	sum uint64
	// Servers that take no shard that they do not have yet.
	full []int
}

// newBalance returns the loads before any move. Loads of shards are capped at maxLoad.
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

// overloaded returns the places of the overloaded servers, the one with the highest load first.
func (b *balance) overloaded() (places []int) {
	for place, load := range b.at {
		if b.above(load, b.o.Over) {
			places = append(places, place)
		}
	}
	slices.SortStableFunc(places, func(x, y int) int { return cmp.Compare(b.at[y], b.at[x]) })
	return places
}

// of returns the load of one replica: all requests at the primary, writes elsewhere.
func (l Load) of(primary bool) uint64 {
	if primary {
		return l.Requests
	}
	return l.Writes
}

// above reports whether a load is above a percentage of the mean load of servers.
func (b *balance) above(load, percent uint64) bool {
	return load*uint64(len(b.at))*100 > percent*b.sum
}

// choice is a possible move and its effect.
type choice struct {
	Move
	// The load that moves from one server to the other.
	by uint64
	// The higher of the two servers' loads afterwards.
	worst uint64
}

// relieve plans moves away from an overloaded server until its load is near the mean, or no move
// helps. It returns none, and undoes them, if they win too little together: see Planner.
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
	// The move must be worth it for all servers that it touches.
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

// best returns the move away from a server that minimizes the higher of the two loads afterwards.
// The target's load is below the mean, the replica's load is not above it, and the result is lower
// than the server's load now.
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

// by returns the load that a move takes from one server and gives to the other; 0: none, or in the
// other direction.
func (b *balance) by(m Move) uint64 {
	s, l := &b.c.Shards[m.Shard], b.loads[m.Shard]
	primary := s.Primary == m.From
	gone := l.of(primary)
	if s.Has(m.To) { // primary and backup change places
		return gone - min(gone, l.Writes)
	}
	return gone
}
