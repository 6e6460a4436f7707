package rowan_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/farkv/farkv/client/rowan"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rowan/kv"
)

// TestSize makes pools of random shapes, as small as Size says, on fabrics of one stream and of
// several, and opens them.
func TestSize(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		s := rowan.Shape{
			Kind: kv.Kinds()[i%5], Nodes: 1 + rng.IntN(8), Records: uint64(rng.IntN(1 << (1 + i%18))), PairBytes: 1 +
				rng.IntN(1<<(1+i%15)),
			Workers: rng.IntN(9), Shards: rng.IntN(60), KeyBytes: rng.IntN(rowan.MaxKey + 1),
		}
		s.Replicas = 1 + rng.IntN(s.Nodes)
		if i%3 == 0 {
			s.SegmentBytes = 64 << 10 << rng.IntN(8)
		}
		p, memory, servers, err := rowan.Size(s)
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		f := sim.New(sim.Options{Seed: uint64(i), Nodes: s.Nodes, Memory: memory, Clients: servers + 1,
			RingStreams: i%2 == 0, MTU: 1024 << (i % 3)})
		if err := rowan.Make(f, p); err != nil {
			t.Fatalf("%+v, %d bytes: %v", s, memory, err)
		}
		ep, err := f.Open("worker")
		if err == nil {
			_, err = rowan.Open(ep, f, s.Kind, 0)
		}
		if err != nil {
			t.Fatalf("%+v, %d bytes: %v", s, memory, err)
		}
		if _, err := rowan.Usage(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// TestCredit: a source has leave for as long as servers may take to grant more, unless the pool is
// small. With leave for ten entries of a kilobyte a load took thirty times as long.
func TestCredit(t *testing.T) {
	for records, least := range map[uint64]int{100_000: 128 << 10, 20_000: 64 << 10, 1: 2 * 1024} {
		p, memory, _, err := rowan.Size(rowan.Shape{Nodes: 3, Records: records, PairBytes: 1024, Replicas: 3})
		if err != nil {
			t.Fatal(err)
		}
		if all := p.Credit * 3 * (2*rowan.DefaultWorkers + 1); p.Credit < least ||
			records > 1 && uint64(all) > memory/15 {
			t.Errorf("%d records: leave for %d bytes a source, want at least %d, for all %d of %d", records, p.Credit,
				least, all,
				memory)
		}
	}
}

// TestBadShapes: what makes no pool is refused.
func TestBadShapes(t *testing.T) {
	good := rowan.Shape{Nodes: 3, Records: 1000, PairBytes: 100, Replicas: 3}
	for what, change := range map[string]func(*rowan.Shape){
		"no nodes":           func(s *rowan.Shape) { s.Nodes = 0 },
		"more replicas":      func(s *rowan.Shape) { s.Replicas = 4 },
		"none":               func(s *rowan.Shape) { s.Replicas = 0 },
		"long pairs":         func(s *rowan.Shape) { s.PairBytes = rowan.MaxPair + 1 },
		"few segments":       func(s *rowan.Shape) { s.SegmentBytes, s.Records = rowan.LeastSegment, 10_000_000 },
		"long keys":          func(s *rowan.Shape) { s.KeyBytes = rowan.MaxKey + 1 },
		"many workers":       func(s *rowan.Shape) { s.Workers = rowan.MaxWorkers + 1 },
		"many shards":        func(s *rowan.Shape) { s.Shards = 1 << 14 },
		"records beyond all": func(s *rowan.Shape) { s.Records = 1 << 60 },
		"little memory":      func(s *rowan.Shape) { s.Memory = 64 << 10 },
		"short segments":     func(s *rowan.Shape) { s.PairBytes, s.SegmentBytes = rowan.MaxPair, rowan.LeastSegment },
	} {
		s := good
		change(&s)
		if _, _, _, err := rowan.Size(s); !errors.Is(err, rowan.ErrParams) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, _, err := rowan.Size(good); err != nil {
		t.Error(err)
	}
}

// TestDescribe: each part of a node's memory has a name.
func TestDescribe(t *testing.T) {
	p, memory, _, err := rowan.Size(rowan.Shape{Nodes: 3, Records: 1000, PairBytes: 100, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	f, err := shm.NewMem(shm.Geometry{Nodes: 3, Memory: memory, Clients: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := rowan.Make(f, p); err != nil {
		t.Fatal(err)
	}
	ep, err := f.Open("describe")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	describe, err := rowan.Describe(ep)
	if err != nil {
		t.Fatal(err)
	}
	parts := []string{"header", "CommitVer of shard 0", "CommitVer of shard 143", "leave of source 0",
		"what source 1 has spent", "state of segment 0", "floor 0 of segment 0", "state of segment 1",
		"segment 0 at 0x0",
		"segment 1 at 0x40"}
	for off := uint64(0); off < memory && len(parts) > 0; off += 8 {
		if strings.HasPrefix(describe(rdma.At(1, off)), parts[0]) {
			parts = parts[1:]
		}
	}
	if len(parts) > 0 {
		t.Errorf("nothing is %q", parts[0])
	}
	if got := describe(rdma.At(1, 1<<40)); got != "" {
		t.Errorf("beyond all is %s", fmt.Sprint(got))
	}
}
