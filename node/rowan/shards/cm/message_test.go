package cm_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// TestGolden: servers of one version talk with managers of another.
func TestGolden(t *testing.T) {
	r := cm.Report{
		Copied: []int{1, 0x203}, Migrated: []int{4},
		Loads: []cm.Load{{Shard: 5, Load: shards.Load{Requests: 6, Writes: 7}}},
	}
	for _, v := range []struct {
		got  []byte
		want string
	}{
		{cm.EncodeAnswer(9, false, r), "0900000000000000" + "0200010001000000" + "01000302" + "0400" +
			"0500" + "0600000000000000" + "0700000000000000"},
		{cm.EncodeAnswer(9, true, cm.Report{}), "0900000000000000" + "0000000000000100"},
		{cm.EncodeAnswer(9, false, cm.Report{Full: true}), "0900000000000000" + "0000000000000200"},
		{cm.EncodeAnswer(9, false, cm.Report{Digests: []cm.Digest{{Shard: 5,
			Digest: shards.Digest{Sum: 6, Terms: 8, Versions: 7}}}}),
			"0900000000000000" + "0000000001002000" + "0500" + "0600000000000000" + "0800000000000000" +
				"0700000000000000"},
		{cm.EncodeAnswer(9, false, cm.Report{Damaged: []cm.Damage{{Shard: 5, Offset: 6}}}),
			"0900000000000000" + "0000000000000800" + "0500" + "0600000000000000"},
		{cm.EncodeEnded(9, "why"), "0900000000000000" + "0000000000001000" + "776879"},
		{cm.EncodeQuestion(9, 8, true), "0900000000000000" + "0800000000000000" + "0100000000000000"},
		{cm.EncodeQuestion(1<<32, 0, false), "0000000001000000" + "0000000000000000" + "0000000000000000"},
	} {
		if got := hex.EncodeToString(v.got); got != v.want {
			t.Errorf("%s, want %s", got, v.want)
		}
	}
}

// TestOlderDigests: digests without terms, as servers of an older version tell them, are refused:
// they differ from all others.
func TestOlderDigests(t *testing.T) {
	older, err := hex.DecodeString("0900000000000000" + "0000000001000400" + "0500" + "0600000000000000" +
		"0700000000000000")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, r, err := cm.DecodeAnswer(older); err == nil {
		t.Errorf("they are read as %+v", r)
	}
}

// TestLongAnswer: an answer fits into the manager's mailbox, and has as much of a report as does.
func TestLongAnswer(t *testing.T) {
	all := make([]int, 5000)
	long := cm.Report{Copied: all, Migrated: all, Loads: make([]cm.Load, 5000), Damaged: make([]cm.Damage, 5000)}
	p := cm.EncodeAnswer(1, false, long)
	if len(p) > cm.MostAnswer {
		t.Errorf("%d bytes, and the mailbox takes %d", len(p), cm.MostAnswer)
	}
	long.Loads, long.Digests = nil, make([]cm.Digest, 5000)
	if p := cm.EncodeAnswer(1, false, long); len(p) > cm.MostAnswer {
		t.Errorf("%d bytes with digests, and the mailbox takes %d", len(p), cm.MostAnswer)
	}
	_, _, r, err := cm.DecodeAnswer(p)
	if err != nil || len(r.Copied) != cm.MaxReports || len(r.Migrated) != cm.MaxReports ||
		len(r.Loads) != cm.MaxLoads ||
		len(r.Damaged) != cm.MaxDamages {
		t.Errorf("it has %d copies, %d migrations, %d loads, %d damages: %v", len(r.Copied), len(r.Migrated),
			len(r.Loads),
			len(r.Damaged), err)
	}
	if p = cm.EncodeEnded(1, strings.Repeat("why", 5000)); len(p) > cm.MostAnswer || len(cm.DecodeEnded(p)) < 300 {
		t.Errorf("why a server has ended takes %d bytes", len(p))
	}
}

// FuzzAnswer: bytes are an answer in one way at most.
func FuzzAnswer(f *testing.F) {
	f.Add(cm.EncodeAnswer(1, true, cm.Report{}))
	f.Add(cm.EncodeAnswer(1, false, cm.Report{Digests: make([]cm.Digest, 2)}))
	some := cm.Report{Copied: []int{1}, Migrated: []int{2, 3}, Loads: make([]cm.Load, 2), Full: true,
		Damaged: make([]cm.Damage, 1)}
	f.Add(cm.EncodeEnded(3, "why"))
	f.Add(cm.EncodeAnswer(2, false, some))
	f.Fuzz(func(t *testing.T, p []byte) {
		term, restarted, r, err := cm.DecodeAnswer(p)
		if err != nil || len(r.Copied) > cm.MaxReports || len(r.Migrated) > cm.MaxReports ||
			len(r.Loads) > cm.MaxLoads || len(r.Digests) > cm.MaxDigests ||
			len(r.Damaged) > cm.MaxDamages || len(p) > cm.MostAnswer {
			return
		}
		if why := cm.DecodeEnded(p); why != "" {
			if again := cm.EncodeEnded(term, why); !bytes.Equal(again, p) && len(why) <= cm.MaxReason {
				t.Fatalf("%x is read as %d, %q, which is %x", p, term, why, again)
			}
			return
		}
		if again := cm.EncodeAnswer(term, restarted, r); !bytes.Equal(again, p) {
			t.Fatalf("%x is read as %d, %+v, which is %x", p, term, r, again)
		}
	})
}

// TestManyDigests: a few answers have all digests.
func TestManyDigests(t *testing.T) {
	const n = 1000
	all := make([]cm.Digest, n)
	for i := range all {
		all[i].Shard = i
	}
	var s cm.Server
	told := map[int]bool{}
	for range 1 + n/cm.MaxDigests {
		some := s.SomeOf(all)
		if len(some) > cm.MaxDigests {
			t.Errorf("%d digests in an answer", len(some))
		}
		for _, d := range some {
			told[d.Shard] = true
		}
	}
	if len(told) != n {
		t.Errorf("%d of %d digests were told", len(told), n)
	}
}

// TestDigestsOfTerm: what replicas had in another term is forgotten.
func TestDigestsOfTerm(t *testing.T) {
	c, err := shards.New([]int{0, 1}, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	next, err := c.Fail(1)
	if err != nil {
		t.Fatal(err)
	}
	reports := []cm.Report{{Digests: make([]cm.Digest, 1)}, {Digests: make([]cm.Digest, 1)}}
	if n, m := cm.Collected(c, c, reports), cm.Collected(c, next, reports); n != 2 || m != 0 {
		t.Errorf("%d digests in the same term, and %d in the next", n, m)
	}
}

// TestDamaged: an event names some replicas, and counts the rest.
func TestDamaged(t *testing.T) {
	six := []shards.Replica{{Shard: 7, Node: 1}, {Shard: 8, Node: 1}, {Shard: 9, Node: 1}, {Shard: 9, Node: 2}, {}, {}}
	for n, want := range map[int]string{
		0: "all replicas have the same",
		1: "damaged, copied anew: shard 7 of server 1",
		6: "damaged, copied anew: " +
			"shard 7 of server 1, shard 8 of server 1, shard 9 of server 1, shard 9 of server 2, 2 more",
	} {
		if got := cm.Compared(six[:n]); got != want {
			t.Errorf("%d replicas: %q", n, got)
		}
	}
}

// FuzzQuestion: so are they a question.
func FuzzQuestion(f *testing.F) {
	f.Add(cm.EncodeQuestion(3, 2, true))
	f.Fuzz(func(t *testing.T, p []byte) {
		term, epoch, committed, ok := cm.DecodeQuestion(p)
		if ok && !bytes.Equal(cm.EncodeQuestion(term, epoch, committed), p) {
			t.Fatalf("%x is read as %d, %d, %v", p, term, epoch, committed)
		}
	})
}

// TestCounted: loads are what was counted in a period.
func TestCounted(t *testing.T) {
	c, err := shards.New([]int{0, 1}, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	moved, err := c.Move(shards.Move{Shard: 0, From: 0, To: 1})
	if err != nil {
		t.Fatal(err)
	}
	count := func(shard int, requests, writes uint64) cm.Report {
		return cm.Report{Loads: []cm.Load{{Shard: shard, Load: shards.Load{Requests: requests, Writes: writes}}}}
	}
	first := []cm.Report{count(0, 10, 4), count(1, 100, 40)}
	for _, v := range []struct {
		what   string
		second *shards.Config
		end    []cm.Report
		want   string
	}{
		{"the difference", c, []cm.Report{count(0, 15, 5), count(1, 100, 40)}, "[{5 1} {0 0}]"},
		{"one that counts anew", c, []cm.Report{count(0, 9, 5), count(1, 101, 39)}, "[{0 0} {0 0}]"},
		{"another primary", moved, []cm.Report{count(0, 15, 5), count(0, 15, 5)}, "[{0 0} {0 0}]"},
		{"no primary", c, []cm.Report{count(1, 500, 500), count(1, 107, 41)}, "[{0 0} {7 1}]"},
		{"no shard", c, []cm.Report{count(7, 500, 500), count(1, 107, 41)}, "[{0 0} {7 1}]"},
	} {
		got := fmt.Sprint(cm.Counted([]*shards.Config{c, v.second}, first, v.end))
		if got != v.want {
			t.Errorf("%s: %s, want %s", v.what, got, v.want)
		}
	}
}
