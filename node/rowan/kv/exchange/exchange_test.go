package exchange

import (
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/kv/worker"
	"github.com/farkv/farkv/node/rowan/shards"
)

// TestDifferedTarget: the target of a migration that was found to be damaged begins with nothing,
// too, and its source copies all to it once more. It goes on with what it has when its source died.
func TestDifferedTarget(t *testing.T) {
	config, err := shards.New([]int{0, 1, 2}, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	with := func(term uint64, s shards.Shard, node int) *state.Term {
		c := *config
		c.Term, c.Committed, c.Shards = term, true, slices.Clone(c.Shards)
		c.Shards[0] = s
		return state.NewTerm(&c, node)
	}
	migrates := shards.Shard{Primary: 0, Source: 1, Backups: []int{2}}
	copies := shards.Shard{Primary: 1, Source: shards.None, Backups: []int{2}, Copying: []int{0}}
	if !with(2, copies, 0).Differed(with(1, migrates, 0), 0) {
		t.Error("it keeps what it had")
	}
	died := with(2, shards.Shard{Primary: 2, Source: shards.None, Copying: []int{0}}, 0)
	died.Members = []shards.Member{{Node: 0, Since: 1}, {Node: 2, Since: 1}}
	if died.Differed(with(1, migrates, 0), 0) {
		t.Error("it begins with nothing though its source died")
	}
	if with(2, migrates, 0).Differed(with(1, migrates, 0), 0) || with(2, copies, 0).Differed(nil, 0) {
		t.Error("one that goes on, or begins, differs")
	}

	b, _ := kvtest.New(t, 2, kv.Rowan, worker.New)
	x := &Exchanger{s: b.Server, ep: b.Endpoint, senders: make([]*rowan.Sender, b.Server.Opt.Nodes)}
	b.Server.Node, x.term = 1, nil
	x.begin(with(1, migrates, 1))
	if len(x.copies) != 1 {
		t.Fatalf("%d copies", len(x.copies))
	}
	x.copies[0].next = 3
	if x.begin(with(2, migrates, 1)); x.copies[0].next != 3 {
		t.Error("a copy begins anew in the next term")
	}
	if x.begin(with(3, copies, 1)); len(x.copies) != 1 || x.copies[0].next != 0 {
		t.Error("a copy goes on, though the other one begins with nothing")
	}
	b.Server.Node = 0
}

// TestGives: a server copies nothing, and does not say that it has given what it has, before it
// has.
func TestGives(t *testing.T) {
	b, _ := kvtest.New(t, 2, kv.Rowan, worker.New)
	term := b.Server.Known.Last()
	x := New(b.Server, b.Endpoint)
	x.begin(term)
	x.copies = []*copying{{shard: term.Find(kv.Hash(b.Key())), node: 1}}
	for range 2 {
		if _, err := x.Step(); err != nil || x.copies[0].next > 0 || x.again > 0 {
			t.Errorf("before it has given what it has the server copies: %v, tells: %v; %v", x.copies[0].next > 0,
				x.again > 0, err)
		}
	}
}

// TestCompares: the digest of a replica has the terms and the versions of its pairs.
func TestCompares(t *testing.T) {
	b, _ := kvtest.New(t, 1, kv.Rowan, worker.New)
	config := *b.Server.Known.Last().Config
	config.Term = 7
	b.Adopt(&config)
	for _, proc := range []uint16{kv.ProcInsert, kv.ProcUpdate} {
		b.End(b.Begin(proc, "value"), kv.StatusOK)
	}
	x := &Exchanger{s: b.Server, ep: b.Endpoint, term: b.Server.Known.Last()}
	for !x.compared.over {
		if err := x.compare(); err != nil {
			t.Fatal(err)
		}
	}
	shard := x.term.Find(kv.Hash(b.Key()))
	told := b.Server.Exchange.Told(7)
	if len(told) != len(x.term.Shards) {
		t.Errorf("%d shards have digests", len(told))
	}
	for _, d := range told {
		want := shards.Digest{}
		if d.Shard == shard {
			want = shards.Digest{Sum: d.Sum, Terms: 7, Versions: 2}
		}
		if d.Digest != want {
			t.Errorf("the digest of shard %d is %+v, want %+v", d.Shard, d.Digest, want)
		}
	}
}
