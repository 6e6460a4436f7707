package shards_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// apply begins moves, and ends those that copy.
func apply(c *shards.Config, moves []shards.Move) (*shards.Config, error) {
	for _, m := range moves {
		next, err := c.Move(m)
		if err != nil {
			return nil, fmt.Errorf("%+v: %w", m, err)
		}
		if err := next.Check(); err != nil {
			return nil, fmt.Errorf("%+v: %w", m, err)
		}
		c = next
	}
	return c, nil
}

// finish ends what moves.
func finish(c *shards.Config) (*shards.Config, error) {
	for i := range c.Shards {
		var err error
		if c.Shards[i].Source != shards.None {
			c, err = c.Migrated(i)
		}
		for _, node := range c.Shards[i].Copying {
			c, err = c.Complete(i, node)
		}
		if err != nil {
			return nil, err
		}
	}
	return c.Commit(), nil
}

// loadOf returns the loads of servers, and the highest in percent of the mean.
func loadOf(c *shards.Config, loads []shards.Load) (at map[int]uint64, worst float64) {
	at = map[int]uint64{}
	sum, high := uint64(0), uint64(0)
	for i, s := range c.Shards {
		for _, n := range s.Replicas() {
			add := loads[i].Writes
			if n == s.Primary {
				add = loads[i].Requests
			}
			at[n] += add
			sum += add
		}
	}
	for _, n := range at {
		high = max(high, n)
	}
	return at, 100 * float64(high) * float64(len(c.Members)) / float64(sum)
}

// even returns loads of shards that clients use evenly: one request in 20 is a PUT.
func even(c *shards.Config) []shards.Load {
	loads := make([]shards.Load, len(c.Shards))
	for i := range loads {
		loads[i] = shards.Load{Requests: 20000, Writes: 1000}
	}
	return loads
}

// awake returns a planner behind its first pause.
func awake(c *shards.Config) *shards.Planner {
	p := shards.NewPlanner(shards.PlanOptions{Least: 1})
	for range 2 {
		p.Plan(c, even(c))
	}
	return p
}

// TestFigure15 is the paper's scenario: of 6 servers A loses 80 % of its requests to one shard of
// B.
func TestFigure15(t *testing.T) {
	const a, b, hot = 0, 1, 1
	c := made(t, 6, 48, 3).Commit()
	p := awake(c)
	loads := even(c)
	if moves := p.Plan(c, loads); moves != nil {
		t.Fatalf("evenly loaded servers move %v", moves)
	}
	for i := range c.Shards {
		if c.Shards[i].Primary == a {
			away := loads[i].Requests * 8 / 10
			loads[i].Requests -= away
			loads[i].Writes /= 5
			loads[hot].Requests += away
			loads[hot].Writes += away / 20
		}
	}
	if _, worst := loadOf(c, loads); worst < 160 || worst > 180 {
		t.Fatalf("B has %.0f %% of the mean", worst)
	}
	moves := p.Plan(c, loads)
	if len(moves) != 1 || moves[0] != (shards.Move{Shard: hot, From: b, To: a}) {
		t.Fatalf("moves %+v, want shard %d from B to A", moves, hot)
	}
	c, err := apply(c, moves)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = finish(c); err != nil {
		t.Fatal(err)
	}
	if at, worst := loadOf(c, loads); worst > 105 {
		t.Errorf("then servers have %v, the highest %.0f %% of the mean", at, worst)
	}
	for range 20 {
		if moves := p.Plan(c, loads); moves != nil {
			t.Fatalf("it goes on: %v", moves)
		}
	}
}

// scene is a configuration with one primary at each server for each of the given loads, without
// writes.
func scene(t *testing.T, replication int, servers ...[]uint64) (*shards.Config, []shards.Load) {
	t.Helper()
	perServer := 0
	for _, l := range servers {
		perServer = max(perServer, len(l))
	}
	c := made(t, len(servers), perServer, replication).Commit()
	loads := make([]shards.Load, len(c.Shards))
	for i := range loads {
		if of := servers[i%len(servers)]; i/len(servers) < len(of) {
			loads[i].Requests = of[i/len(servers)]
		}
	}
	return c, loads
}

// TestPlan shows single rules. Shard s is the (s / number of servers)-th of its server.
func TestPlan(t *testing.T) {
	for _, v := range []struct {
		what    string
		servers [][]uint64
		want    string
	}{
		{"130 % of the mean is not too much", [][]uint64{{100, 30}, {100}, {85}, {85}}, "[]"},
		{"more is", [][]uint64{{70, 50, 20}, {100}, {80}, {80}}, "[{8 0 2}]"},
		{"no room for the hottest", [][]uint64{{150, 10}, {60}, {60}, {60}}, "[{4 0 1}]"},
		{"nor would a move help", [][]uint64{{150}, {60}, {60}, {60}}, "[]"},
		{"a shard hotter than the mean stays", [][]uint64{{150, 40}, {100}, {100}, {0}}, "[{4 0 3}]"},
		{"too little is won", [][]uint64{{150, 2}, {60}, {60}, {60}}, "[]"},
		{"the hottest first", [][]uint64{{60, 10, 15, 60}, {50}, {50}, {50}}, "[{0 0 1} {8 0 2}]"},
		{"until it is near the mean", [][]uint64{{20, 20, 20, 20, 20, 20, 20, 20}, {80}, {80}, {80}},
			"[{0 0 1} {4 0 2} {8 0 3}]"},
		{"what is not moved does not count", [][]uint64{{300, 2}, {90, 60, 50}, {50}, {50}, {50}, {50}}, "[{1 1 2}]"},
		{"the highest one first", [][]uint64{{50, 50, 50}, {50, 50, 50, 50}, {0}, {50}}, "[{1 1 2} {5 1 2} {0 0 3}]"},
	} {
		c, loads := scene(t, 1, v.servers...)
		if got := fmt.Sprint(awake(c).Plan(c, loads)); got != v.want {
			t.Errorf("%s: %v, want %s", v.what, got, v.want)
		}
	}
}

// TestIdle: what is above the mean by chance does not move.
func TestIdle(t *testing.T) {
	for _, v := range []struct {
		each  uint64 // of a mean
		moves int
	}{{9, 0}, {10, 1}} {
		c, loads := scene(t, 1, []uint64{70 * v.each, 50 * v.each, 20 * v.each}, []uint64{100 * v.each},
			[]uint64{80 * v.each}, []uint64{80 * v.each})
		p := shards.NewPlanner(shards.PlanOptions{Pause: 1})
		p.Plan(c, loads)
		if moves := p.Plan(c, loads); len(moves) != v.moves {
			t.Errorf("with a mean of %d: moves %v, want %d", 100*v.each, moves, v.moves)
		}
	}
}

// TestPlanReplicas shows what moves of replicas do to loads.
func TestPlanReplicas(t *testing.T) {
	c := made(t, 3, 2, 2).Commit() // shard 0: 0, 1; shard 1: 1, 2; shard 2: 2, 0; shard 3: 0, 2; 4: 1, 0; 5: 2, 1
	loads := []shards.Load{{90, 80}, {50, 0}, {50, 0}, {70, 60}, {0, 0}, {0, 0}}
	// Server 0: 160, 1: 130, 2: 110. Changing places would take 10 from it, at most, and moving
	// shard 3 to 1 takes 70.
	if got := fmt.Sprint(awake(c).Plan(c, loads)); got != "[]" {
		t.Errorf("servers near the mean: %v", got)
	}
	loads = []shards.Load{{10, 40}, {40, 0}, {20, 0}, {10, 0}, {0, 0}, {0, 0}} // 0: 20, 1: 80, 2: 20
	if got := fmt.Sprint(awake(c).Plan(c, loads)); got != "[{0 1 2}]" {
		t.Errorf("a backup with many writes: %v", got)
	}
	loads = []shards.Load{{100, 90}, {0, 0}, {0, 0}, {100, 20}, {0, 0}, {10, 0}} // 0: 200, 1: 90, 2: 30
	if got := fmt.Sprint(awake(c).Plan(c, loads)); got != "[{3 0 2} {0 0 1}]" {
		t.Errorf("primaries change places with backups: %v", got)
	}
	loads = []shards.Load{{10, 40}, {40, 0}, {20, 0}, {10, 0}, {0, 0}, {0, 0}}
	if got := fmt.Sprint(awake(c).Plan(c, loads, 2)); got != "[{1 1 0}]" {
		t.Errorf("server 2 is full: %v", got)
	}
}

// TestPause: nothing moves beside a migration, nor in the pause behind it, nor before the first
// one.
func TestPause(t *testing.T) {
	c, loads := scene(t, 1, []uint64{70, 50, 20}, []uint64{100}, []uint64{80}, []uint64{80})
	p := shards.NewPlanner(shards.PlanOptions{Pause: 3, Least: 1})
	plan := func(c *shards.Config, moves bool) {
		t.Helper()
		if got := p.Plan(c, loads); (len(got) > 0) != moves {
			t.Fatalf("moves %v", got)
		}
	}
	pause := func() {
		t.Helper()
		for range 3 {
			plan(c, false)
		}
	}
	pause()
	plan(c, true)
	pause()
	plan(c, true)
	pause()
	moving := must(t)(c.Move(shards.Move{Shard: 8, From: 0, To: 2})).Commit()
	for range 10 {
		plan(moving, false)
	}
	pause()
	plan(c, true)
	proposed := *c
	proposed.Committed = false
	plan(&proposed, false)
	pause()
	two, loads2 := scene(t, 2, []uint64{70, 50, 20}, []uint64{100}, []uint64{80}, []uint64{80})
	loads = loads2
	moving = must(t)(two.Move(shards.Move{Shard: 0, From: 1, To: 3})).Commit()
	plan(moving, false)
}

// TestPlanEnds runs many periods with loads of any kind that change by a little: no shard moves for
// ever, and no plan makes the highest load higher. Servers die and join meanwhile, with other
// loads.
func TestPlanEnds(t *testing.T) {
	moved := 0
	seeds.Each(t, 90, func(seed uint64) error {
		r := rand.New(rand.NewPCG(seed, 2))
		n := 2 + r.IntN(7)
		c := made(t, n, 1+r.IntN(48), 1+r.IntN(min(n, 3))).Commit()
		p := shards.NewPlanner(shards.PlanOptions{})
		base := make([]shards.Load, len(c.Shards))
		var times []int // that a shard moved since loads have changed
		for period := range 400 {
			if period%100 == 0 {
				times = make([]int, len(base))
				shift(r, base)
				next, err := c.Join(100 + period)
				if err == nil && period > 0 && r.IntN(2) == 0 && len(c.Members) > 3 {
					next, err = c.Fail(c.Members[r.IntN(len(c.Members))].Node)
				}
				if err != nil {
					return err
				}
				if c, err = finish(next); err != nil {
					return err
				}
			}
			loads := make([]shards.Load, len(base))
			for i := range base { // one in a hundred more or less
				loads[i] = shards.Load{Requests: vary(r, base[i].Requests), Writes: vary(r, base[i].Writes)}
			}
			moves := p.Plan(c, loads)
			for _, m := range moves {
				moved++
				if times[m.Shard]++; times[m.Shard] > 3 {
					at, worst := loadOf(c, loads)
					return fmt.Errorf("%+v is shard %d's move %d, of %v (%.0f %%)", m, m.Shard, times[m.Shard], at,
						worst)
				}
			}
			_, before := loadOf(c, loads)
			next, err := apply(c, moves)
			if err != nil {
				return err
			}
			if next, err = finish(next); err != nil {
				return err
			}
			if _, after := loadOf(next, loads); len(moves) > 0 && after > before {
				return fmt.Errorf("%v make %.0f %% of %.0f %%", moves, after, before)
			}
			c = next
		}
		return nil
	})
	t.Log(moved, "moves")
}

// shift draws loads: even ones with some hot shards.
func shift(r *rand.Rand, base []shards.Load) {
	for i := range base {
		base[i].Requests = 1000 + r.Uint64N(9000)
		if r.IntN(8) == 0 {
			base[i].Requests *= 1 + r.Uint64N(1<<r.IntN(9))
		}
		base[i].Writes = base[i].Requests * r.Uint64N(100) / 100
	}
}

func vary(r *rand.Rand, n uint64) uint64 { return n*99/100 + r.Uint64N(n/50+1) }
