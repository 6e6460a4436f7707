package kit_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

func TestReplicas(t *testing.T) {
	gone := rdma.Member{Gone: true}
	stands := func(n, since int) rdma.Member { return rdma.Member{Replaces: uint16(n + 1), Since: uint64(since)} }
	originals := []node.Replica{{Node: 1, Index: 4}, {Node: 0, Index: 5}, {Node: 2, Index: 6}}
	for _, c := range []struct {
		members []rdma.Member
		want    string
		lost    bool
	}{
		{nil, "[{1 4} {0 5} {2 6}]", false},
		{make([]rdma.Member, 6), "[{1 4} {0 5} {2 6}]", false},
		{[]rdma.Member{1: gone, 5: {}}, "[{0 5} {2 6}]", false},
		{[]rdma.Member{1: gone, 3: stands(1, 2), 5: {}}, "[{0 5} {2 6} {3 4}]", false},
		{[]rdma.Member{0: gone, 1: gone, 3: stands(1, 2), 4: stands(0, 4), 5: {}}, "[{2 6} {3 4} {4 5}]", false},
		{[]rdma.Member{0: gone, 1: gone, 4: stands(1, 4), 3: stands(0, 2), 5: {}}, "[{2 6} {3 5} {4 4}]", false},
		{[]rdma.Member{1: gone, 3: {Gone: true, Replaces: 2, Since: 2}, 5: stands(3, 4)}, "[{0 5} {2 6} {5 4}]",
			false},
		{[]rdma.Member{0: gone, 1: gone, 2: gone, 5: {}}, "[{1 4}]", true},
	} {
		v := rdma.View{Members: c.members}
		if got, lost := kit.Replicas(&v, originals); fmt.Sprint(got) != c.want || lost != c.lost {
			t.Errorf("%v: got %v, %v, want %s, %v", c.members, got, lost, c.want, c.lost)
		}
	}
	v := rdma.View{Members: []rdma.Member{gone, {}, stands(0, 3), {Gone: true, Replaces: 3, Since: 4}}}
	for n, want := range []int{0, 1, 0, 0} {
		if got := v.Original(n); got != want {
			t.Errorf("node %d stands for node %d, want %d", n, got, want)
		}
	}
	if _, left := kit.Place(&v, [][]node.Replica{{{Node: 1}}, {{Node: 3}}, {{Node: 0}}}); !slices.Equal(left,
		[]int{0, 2}) {
		t.Errorf("items %v are left", left)
	}
}

func TestPauses(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name string
		p    kit.Pause
		want []time.Duration
	}{
		{"doubling", kit.Doubling(2*us, 9*us), []time.Duration{2 * us, 4 * us, 8 * us, 9 * us, 9 * us}},
		{"a bound below the first", kit.Doubling(2*us, us), []time.Duration{us, us}},
		{"spread over nothing", kit.Spread(3*us, kit.Doubling(0, 0)), []time.Duration{3 * us, 3 * us}},
	} {
		r := rand.New(rand.NewPCG(1, 2))
		for n, want := range c.want {
			if got := c.p(n, r); got != want {
				t.Errorf("%s: pause %d is %v, want %v", c.name, n, got, want)
			}
		}
	}
	if got := kit.Doubling(us, time.Hour)(1<<40, nil); got != time.Hour {
		t.Errorf("the last pause is %v", got)
	}
	seen := map[time.Duration]bool{}
	r, spread := rand.New(rand.NewPCG(1, 2)), kit.Spread(us, kit.Doubling(4, 4))
	for n := range 1000 {
		seen[spread(n, r)-us] = true
	}
	if len(seen) != 4 || !seen[0] || !seen[3] {
		t.Errorf("it draws from %v", seen)
	}
}

// clock is an Env in which time passes by sleeping only.
type clock struct {
	rdma.Env
	now time.Duration
	r   *rand.Rand
}

func (c *clock) Now() time.Duration    { return c.now }
func (c *clock) Sleep(d time.Duration) { c.now += d }
func (c *clock) Rand() *rand.Rand      { return c.r }

func TestRetry(t *testing.T) {
	c := &clock{}
	r := kit.Retry{Env: c, Pause: kit.Doubling(1, 8), Over: func() bool { return c.now >= 10 }}
	for n := 0; r.Again(); n++ {
		if n > 3 {
			t.Fatal("it goes on behind its time")
		}
	}
	if c.now != 15 || r.Tries != 4 {
		t.Errorf("%d pauses took %d", r.Tries, c.now)
	}
	if r.Wait(); c.now != 23 {
		t.Errorf("a pause of the fifth try took %d", c.now-15)
	}
}

// failing is a Ceiling on which a Raise can fail after it has landed.
type failing struct {
	word uint64
	err  error
}

func (f *failing) Read(meet func(uint64)) error { meet(f.word); meet(f.word / 2); return nil }
func (f *failing) Raise(word uint64) error      { f.word = word; return f.err }

func TestNumbers(t *testing.T) {
	c := &failing{word: 5}
	n, err := kit.OpenNumbers(c, 10)
	must(t, err)
	for _, to := range []uint64{5, 6, 16} {
		must(t, n.Use(to))
		if n.Used() != to || c.word < to || c.word != 5 && c.word != 16 {
			t.Errorf("at %d of %d: %d are used", to, c.word, n.Used())
		}
	}
	c.err = rdma.ErrNodeDown
	if err := n.Use(17); !errors.Is(err, rdma.ErrNodeDown) || n.Used() != 16 {
		t.Errorf("a raise that failed: %v, %d are used", err, n.Used())
	}
	must(t, n.Use(16))
	n, err = kit.OpenNumbers(c, 10)
	if must(t, err); n.Used() != 27 {
		t.Errorf("the next holder begins above %d", n.Used())
	}
}

func TestUnresolved(t *testing.T) {
	var u kit.Unresolved[int]
	for i := range 6 {
		u.Keep(i)
	}
	var tried []int
	u.Resolve(func(op *int) bool { tried = append(tried, *op); *op *= 10; return *op%20 == 0 })
	if fmt.Sprint(tried, u) != "[0 1 2 3 4 5] [10 30 50]" {
		t.Errorf("%v were tried, %v are left", tried, u)
	}
}
