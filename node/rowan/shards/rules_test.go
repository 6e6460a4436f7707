package shards_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// cluster is what a sequence of rules does to data: which replicas have all of a shard that was
// acknowledged. Writes go to all replicas, so that a server that has everything goes on to, as long
// as it is one.
type cluster struct {
	c    *shards.Config
	has  []map[int]bool // by shard: the servers that have all of it
	dead map[int]bool

	compared bool // in this step
}

func newCluster(c *shards.Config) *cluster {
	k := &cluster{c: c, dead: map[int]bool{}}
	for i := range c.Shards {
		has := map[int]bool{}
		for _, n := range c.Shards[i].Replicas() {
			has[n] = true
		}
		k.has = append(k.has, has)
	}
	return k
}

// adopt goes on to the next configuration, and returns what is wrong with it.
func (k *cluster) adopt(next *shards.Config) error {
	was := k.c
	k.c = next
	if err := next.Check(); err != nil {
		return err
	}
	if was.Compare && !next.Compare && !k.compared {
		return errors.New("nothing was compared")
	}
	if next.Term <= was.Term || next.Committed {
		return fmt.Errorf("term %d (committed: %v) follows %d", next.Term, next.Committed, was.Term)
	}
	for i := range next.Shards {
		if err := k.adoptShard(i, &was.Shards[i], &next.Shards[i]); err != nil {
			return fmt.Errorf("shard %d was %+v and is %+v: %w", i, was.Shards[i], next.Shards[i], err)
		}
	}
	return nil
}

func (k *cluster) adoptShard(i int, was, s *shards.Shard) error {
	has := k.has[i]
	for n := range has {
		has[n] = has[n] && !k.dead[n]
	}
	if s.Lost() {
		for n, all := range has {
			if all && slices.Contains(was.Replicas(), n) {
				return fmt.Errorf("it is lost, and server %d has all of it", n)
			}
		}
		return nil
	}
	if was.Lost() {
		return errors.New("it was lost")
	}
	replicas := s.Replicas()
	for n := range has {
		if !slices.Contains(replicas, n) {
			delete(has, n) // it gets no writes any more
		}
	}
	for _, n := range replicas {
		if k.dead[n] {
			return fmt.Errorf("server %d is dead", n)
		}
	}
	before := append([]int{was.Primary, was.Source}, was.Backups...)
	if s.Source != was.Primary && !slices.Contains(before, s.Primary) {
		return fmt.Errorf("server %d is primary, and was no complete backup", s.Primary)
	}
	complete := slices.Clone(s.Backups)
	if s.Source == shards.None {
		complete = append(complete, s.Primary)
	} else {
		complete = append(complete, s.Source)
	}
	for _, n := range complete {
		if !has[n] {
			return fmt.Errorf("server %d counts as complete, and has not all of it", n)
		}
	}
	return nil
}

// step applies one rule, drawn at random. It returns its name, or "" where the configuration does
// not allow it.
func (k *cluster) step(r *rand.Rand) (what string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: it panicked: %v", what, p)
		}
	}()
	c := k.c
	shard := r.IntN(len(c.Shards))
	s := &c.Shards[shard]
	node := c.Members[r.IntN(len(c.Members))].Node
	var next *shards.Config
	k.compared = false
	switch r.IntN(9) {
	case 7:
		if !c.Compare {
			what = "cold start"
			next, err = c.ColdStart(k.present())
			break
		}
		what = "compare"
		k.compared = true
		next, err = k.compare(r)
	case 0, 1:
		m := shards.Move{Shard: shard, From: node, To: c.Members[r.IntN(len(c.Members))].Node}
		if replicas := s.Replicas(); len(replicas) > 0 {
			m.From = replicas[r.IntN(len(replicas))]
		}
		what = fmt.Sprintf("move %+v", m)
		next, err = c.Move(m)
	case 2:
		what = fmt.Sprintf("migrated %d", shard)
		if next, err = c.Migrated(shard); err == nil {
			k.has[shard][s.Primary] = true
		}
	case 3, 4:
		if len(s.Copying) > 0 {
			node = s.Copying[r.IntN(len(s.Copying))]
		}
		what = fmt.Sprintf("complete %d at %d", shard, node)
		if next, err = c.Complete(shard, node); err == nil {
			k.has[shard][node] = true
		}
	case 5:
		node = 30 + r.IntN(30)
		if !k.dead[node] {
			what = fmt.Sprintf("join %d", node)
			next, err = c.Join(node)
		}
	case 6:
		if r.IntN(3) > 0 || len(c.Members) < 2 {
			return "", nil
		}
		dead := []int{node}
		if also := c.Members[r.IntN(len(c.Members))].Node; r.IntN(4) == 0 && also != node && len(c.Members) > 2 {
			dead = append(dead, also)
		}
		for _, n := range dead {
			k.dead[n] = true
		}
		what = fmt.Sprintf("fail %v", dead)
		next, err = c.Fail(dead...)
	}
	if errors.Is(err, shards.ErrRefused) || next == nil {
		return "", nil
	}
	if err == nil {
		err = k.adopt(next)
	}
	return what, err
}

// present returns all members, as they are at a cold start.
func (k *cluster) present() (all []shards.Present) {
	for _, m := range k.c.Members {
		all = append(all, shards.Present{Node: m.Node, Term: k.c.Term})
	}
	return all
}

// compare damages replicas, fewer than half of a shard's complete ones, and compares all.
func (k *cluster) compare(r *rand.Rand) (*shards.Config, error) {
	digests := map[shards.Replica]shards.Digest{}
	var damaged []shards.Replica
	for i := range k.c.Shards {
		complete := k.c.Shards[i].Complete()
		most := (len(complete) - 1) / 2
		for _, n := range complete {
			replica := shards.Replica{Shard: i, Node: n}
			digests[replica] = shards.Digest{Sum: uint64(i), Terms: 9, Versions: 1000}
			if most > 0 && r.IntN(4) == 0 {
				most--
				damaged = append(damaged, replica)
				digests[replica] = shards.Digest{Sum: r.Uint64(), Terms: 9, Versions: 900 + r.Uint64N(200)}
				delete(k.has[i], n)
			}
		}
	}
	next, differ, err := k.c.Commit().Compared(digests)
	if err == nil && fmt.Sprint(differ) != fmt.Sprint(damaged) {
		err = fmt.Errorf("of damaged replicas %v it finds %v", damaged, differ)
	}
	return next, err
}

// TestRules applies rules in any order: what Check says holds, and no data is lost that a server
// has.
func TestRules(t *testing.T) {
	names := map[string]int{}
	seeds.Each(t, 600, func(seed uint64) error {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 1 + r.IntN(6)
		nodes := r.Perm(12)[:n]
		c, err := shards.New(nodes, 1+r.IntN(6), 1+r.IntN(min(n, 4)))
		if err != nil {
			return err
		}
		if err := c.Check(); err != nil {
			return err
		}
		k := newCluster(c)
		var done []string
		for range 150 {
			what, err := k.step(r)
			if what != "" {
				done = append(done, what)
				var word string
				fmt.Sscan(what, &word)
				names[word]++
			}
			if err == nil {
				err = sameBytes(k.c)
			}
			if err != nil {
				return fmt.Errorf("behind %v: %w", done, err)
			}
		}
		return nil
	})
	t.Log(names)
}

// TestNew makes configurations of many shapes: each server has as many primaries as any other, and
// as many backups; those of one primary are spread over all others.
func TestNew(t *testing.T) {
	for n := 1; n <= 12; n++ {
		for replication := 1; replication <= min(n, 4); replication++ {
			nodes := make([]int, n)
			for i := range nodes {
				nodes[i] = 3 * i
			}
			c, err := shards.New(nodes, 48, replication)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Check(); err != nil || len(c.Shards) != n*48 {
				t.Fatalf("%d servers, %d replicas: %d shards, %v", n, replication, len(c.Shards), err)
			}
			primaries, backups, pairs := map[int]int{}, map[int]int{}, map[[2]int]int{}
			for _, s := range c.Shards {
				primaries[s.Primary]++
				for _, b := range s.Backups {
					backups[b]++
					pairs[[2]int{s.Primary, b}]++
				}
			}
			for _, node := range nodes {
				if primaries[node] != 48 || backups[node] != 48*(replication-1) {
					t.Errorf("%d servers: %d has %d primaries and %d backups", n, node, primaries[node], backups[node])
				}
			}
			for pair, count := range pairs {
				if even := 48 * (replication - 1) / (n - 1); count < even || count > even+1 {
					t.Errorf("%d servers: %d shards have primary and backup at %v, want %d", n, count, pair, even)
				}
			}
		}
	}
	for _, bad := range []struct {
		nodes                  []int
		perServer, replication int
	}{
		{nil, 48, 1}, {[]int{1, 2}, 48, 3}, {[]int{1, 1}, 48, 2}, {[]int{1, 2}, 0, 2}, {[]int{1, 2}, 48, 0},
		{[]int{-1, 2}, 48, 2}, {[]int{1, 1 << 16}, 48, 2}, {make([]int, 257), 1, 1}, {[]int{1, 2, 3}, 5000, 3},
	} {
		if _, err := shards.New(bad.nodes, bad.perServer, bad.replication); !errors.Is(err, shards.ErrRefused) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// made returns a new configuration of nodes 0 to n-1.
func made(t testing.TB, n, perServer, replication int) *shards.Config {
	t.Helper()
	nodes := make([]int, n)
	for i := range nodes {
		nodes[i] = i
	}
	c, err := shards.New(nodes, perServer, replication)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// must returns what a rule returned.
func must(t testing.TB) func(*shards.Config, error) *shards.Config {
	return func(c *shards.Config, err error) *shards.Config {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
		return c
	}
}

func spread(c *shards.Config, each func(shards.Shard) []int) (low, high int) {
	n := map[int]int{}
	for _, s := range c.Shards {
		for _, node := range each(s) {
			n[node]++
		}
	}
	low = 1 << 30
	for _, m := range c.Members {
		low, high = min(low, n[m.Node]), max(high, n[m.Node])
	}
	return low, high
}

func primary(s shards.Shard) []int  { return []int{s.Primary} }
func replicas(s shards.Shard) []int { return s.Replicas() }

// TestFailSpreads lets servers die one by one: those that remain share what they had evenly.
func TestFailSpreads(t *testing.T) {
	c := made(t, 7, 48, 3)
	for dead := range 4 {
		c = must(t)(c.Fail(dead))
		for i := range c.Shards {
			for _, node := range c.Shards[i].Copying {
				c = must(t)(c.Complete(i, node))
			}
		}
		if lost := c.Lost(); lost != nil {
			t.Fatalf("shards %v are lost", lost)
		}
		if low, high := spread(c, primary); high-low > 2 {
			t.Errorf("%d servers died: the others have %d to %d primaries", dead+1, low, high)
		}
		if low, high := spread(c, replicas); high-low > 2 {
			t.Errorf("%d servers died: the others have %d to %d replicas", dead+1, low, high)
		}
	}
}

// TestJoin lets a server join: in the end all have about as many replicas.
func TestJoin(t *testing.T) {
	c := must(t)(made(t, 6, 48, 3).Join(9))
	if m := c.Member(9); m == nil || m.Since != c.Term {
		t.Fatalf("it is member %+v in term %d", m, c.Term)
	}
	for i := range c.Shards {
		for _, node := range c.Shards[i].Copying {
			c = must(t)(c.Complete(i, node))
		}
	}
	if low, high := spread(c, replicas); high-low > 2 {
		t.Errorf("servers have %d to %d replicas", low, high)
	}
	if _, err := c.Join(9); !errors.Is(err, shards.ErrRefused) {
		t.Errorf("it joins again: %v", err)
	}
	few := must(t)(must(t)(made(t, 3, 4, 3).Fail(1)).Join(1))
	for i, s := range few.Shards {
		if len(s.Replicas()) != 3 || len(s.Copying) != 1 {
			t.Errorf("shard %d of three servers is %+v", i, s)
		}
	}
}

// TestMigration goes through what can happen to the servers of a migration, of shard 0 from 0 to 4,
// with backups at 1 and 2.
func TestMigration(t *testing.T) {
	c := made(t, 5, 1, 3)
	if s := c.Shards[0]; s.Primary != 0 || !slices.Equal(s.Backups, []int{1, 2}) {
		t.Fatalf("shard 0 is %+v", s)
	}
	moving := must(t)(c.Move(shards.Move{Shard: 0, From: 0, To: 4}))
	for _, v := range []struct {
		what string
		c    *shards.Config
		want shards.Shard
	}{
		{"it begins", moving, shards.Shard{Primary: 4, Source: 0, Backups: []int{1, 2}}},
		{"it ends", must(t)(moving.Migrated(0)), shards.Shard{Primary: 4, Source: shards.None, Backups: []int{1, 2}}},
		{"a backup died, it ends", must(t)(must(t)(moving.Fail(1)).Migrated(0)),
			shards.Shard{Primary: 4, Source: shards.None, Backups: []int{2, 0}}},
		{"the source dies", must(t)(moving.Fail(0)),
			shards.Shard{Primary: 1, Source: shards.None, Backups: []int{2}, Copying: []int{4}}},
		{"the target dies", must(t)(moving.Fail(4)),
			shards.Shard{Primary: 0, Source: shards.None, Backups: []int{1, 2}}},
		{"both die", must(t)(moving.Fail(0, 4)),
			shards.Shard{Primary: 1, Source: shards.None, Backups: []int{2}, Copying: []int{3}}},
		{"only the target is left", must(t)(moving.Fail(0, 1, 2)),
			shards.Shard{Primary: shards.None, Source: shards.None}},
		{"to a backup", must(t)(c.Move(shards.Move{Shard: 0, From: 0, To: 2})),
			shards.Shard{Primary: 2, Source: shards.None, Backups: []int{1, 0}}},
		{"of a backup", must(t)(c.Move(shards.Move{Shard: 0, From: 1, To: 3})),
			shards.Shard{Primary: 0, Source: shards.None, Backups: []int{2, 1}, Copying: []int{3}}},
	} {
		if got := v.c.Shards[0]; fmt.Sprint(got) != fmt.Sprint(v.want) {
			t.Errorf("%s: %+v, want %+v", v.what, got, v.want)
		}
	}
	for _, m := range []shards.Move{
		{0, 3, 4}, {0, 0, 0}, {0, 0, 7}, {0, 1, 2}, {0, 1, 0}, {-1, 0, 3}, {5, 0, 3},
	} {
		if _, err := c.Move(m); !errors.Is(err, shards.ErrRefused) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	if _, err := moving.Move(shards.Move{Shard: 0, From: 4, To: 3}); !errors.Is(err, shards.ErrRefused) {
		t.Errorf("a shard moves twice at a time: %v", err)
	}
	if _, err := c.Migrated(0); !errors.Is(err, shards.ErrRefused) {
		t.Errorf("a migration ends that did not begin: %v", err)
	}
	if _, err := moving.Complete(0, 4); !errors.Is(err, shards.ErrRefused) {
		t.Errorf("a target is a backup: %v", err)
	}
}

// TestSummary: a summary counts what has to get where it belongs.
func TestSummary(t *testing.T) {
	c := made(t, 5, 1, 3).Commit()
	moving := must(t)(c.Move(shards.Move{Shard: 0, From: 0, To: 4}))
	for _, v := range []struct {
		c    *shards.Config
		want string
	}{
		{c, "term 1: 5 servers, 5 shards"},
		{moving, "term 2, not committed yet: 5 servers, 5 shards, 1 migrating"},
		{must(t)(c.Fail(1)), "term 2, not committed yet: 4 servers, 5 shards, 3 being copied"},
		{must(t)(c.Fail(0, 1, 2)), "term 2, not committed yet: 2 servers, 5 shards, 2 being copied, 1 lost"},
	} {
		if got := v.c.Summary(); got != v.want {
			t.Errorf("%s, want %s", got, v.want)
		}
	}
}

// TestTerms: a configuration of the last term has no successor.
func TestTerms(t *testing.T) {
	c := made(t, 2, 1, 1)
	c.Term = shards.MaxTerm
	if _, err := c.Fail(1); !errors.Is(err, shards.ErrTerms) {
		t.Error(err)
	}
	if _, err := c.Join(2); !errors.Is(err, shards.ErrTerms) {
		t.Error(err)
	}
	if _, err := c.Fail(0, 1); !errors.Is(err, shards.ErrTerms) && !errors.Is(err, shards.ErrRefused) {
		t.Error(err)
	}
}

// TestColdStart starts pools with some of their servers, and files of any age.
func TestColdStart(t *testing.T) {
	c := must(t)(made(t, 4, 4, 2).Fail(3))
	c = must(t)(c.Join(3)) // in term 3
	for i := range c.Shards {
		for _, node := range c.Shards[i].Copying {
			c = must(t)(c.Complete(i, node))
		}
	}
	all := func(terms ...uint64) (l []shards.Present) {
		for i, term := range terms {
			if term > 0 {
				l = append(l, shards.Present{Node: i, Term: term})
			}
		}
		return l
	}
	last := c.Term
	for _, v := range []struct {
		what    string
		present []shards.Present
		members int
		err     error
	}{
		{"all", all(last, last, last, last), 4, nil},
		{"one did not hear of the last terms", all(last, 1, last, last), 4, nil},
		{"one missed when it was no member", all(last, last, last, 2), 3, nil},
		{"it knows that it joined", all(last, last, last, 3), 4, nil},
		{"one is missing", all(last, 0, last, last), 3, nil},
		{"two are missing", all(last, 0, 0, last), 0, shards.ErrMissing},
		{"one of two has old data", all(last, last, 0, 2), 0, shards.ErrMissing},
		{"none is there", nil, 0, shards.ErrMissing},
		{"the configuration is old", all(last, last+1, last, last), 0, shards.ErrOlder},
		{"so it is when a stranger says so", append(all(last, last, last, last),
			shards.Present{Node: 9, Term: last + 1}), 0,
			shards.ErrOlder},
		{"a stranger does not count", append(all(last, 0, last, last), shards.Present{Node: 9, Term: 1}), 3, nil},
	} {
		next, err := c.ColdStart(v.present)
		if !errors.Is(err, v.err) {
			t.Errorf("%s: %v, want %v", v.what, err, v.err)
			continue
		}
		if err == nil && (next.Check() != nil || next.Term <= last || len(next.Members) != v.members ||
			next.Lost() != nil || !next.Compare) {
			t.Errorf("%s: %+v", v.what, next)
		}
	}
}

// TestCompared compares two replicas, or three of which no two have the same: the one with the
// greatest weight counts.
func TestCompared(t *testing.T) {
	for _, v := range []struct {
		weights []uint64 // of the primary and the backups, ten times the terms and the versions
		primary int
		differ  string
	}{
		{[]uint64{7, 7}, 0, "[]"},
		{[]uint64{7, 6}, 0, "[shard 0 of server 1]"},
		{[]uint64{6, 7}, 1, "[shard 0 of server 0]"},
		{[]uint64{5, 7, 6}, 1, "[shard 0 of server 0 shard 0 of server 2]"},
		{[]uint64{8, 7, 7}, 1, "[shard 0 of server 0]"},
		{[]uint64{0, 7, 0}, 0, "[shard 0 of server 1]"},
		{[]uint64{9, 11}, 1, "[shard 0 of server 0]"},
		{[]uint64{11, 9}, 0, "[shard 0 of server 1]"},
	} {
		n := len(v.weights)
		c, err := shards.New([]int{0, 1, 2, 3}[:n], 1, n)
		if err != nil {
			t.Fatal(err)
		}
		c.Compare = true
		digests := map[shards.Replica]shards.Digest{}
		compared := func() (*shards.Config, []shards.Replica, error) { return c.Commit().Compared(digests) }
		for i := range c.Shards {
			for place, node := range c.Shards[i].Complete() {
				if _, _, err := compared(); !errors.Is(err, shards.ErrRefused) {
					t.Fatalf("with %d digests: %v", len(digests), err)
				}
				d := shards.Digest{Sum: 1}
				if i == 0 {
					w := v.weights[place]
					d = shards.Digest{Sum: w, Terms: w / 10, Versions: w % 10}
				}
				digests[shards.Replica{Shard: i, Node: node}] = d
			}
		}
		if _, _, err := c.Compared(digests); !errors.Is(err, shards.ErrRefused) {
			t.Errorf("in a term that is not committed: %v", err)
		}
		next, differ, err := compared()
		if err != nil || fmt.Sprint(differ) != v.differ || next.Shards[0].Primary != v.primary || next.Check() != nil ||
			next.Compare || len(next.Shards[0].Replicas()) != n {
			t.Errorf("%v: %v differ, %+v, %v", v.weights, differ, next, err)
		}
		c.Compare = false
		if _, _, err := compared(); !errors.Is(err, shards.ErrRefused) {
			t.Errorf("in a term that compares nothing: %v", err)
		}
	}
}
