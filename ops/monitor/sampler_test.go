package monitor

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
)

// TestSampler looks at a pool that breaks, is removed, and is there again.
func TestSampler(t *testing.T) {
	addr := fmt.Sprintf("shm:farkv-test-sampler-%d", os.Getpid())
	make := func() *stores.Pool {
		p, err := stores.Create(addr, "fusee", stores.Params{Records: 1000, Nodes: 4, Spares: 1})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := make()
	defer func() { _ = fabrics.Remove(addr, true) }()
	s := NewSampler(addr)
	defer s.Close()
	now := time.Now()
	first := s.Look(now)
	if first.Problem != "" || !first.Whole || first.Store != "fusee" || first.MayDie < 1 || first.Spares != 1 ||
		len(first.Nodes) != 4 || first.Nodes[3].Role != "spare" || len(first.Fill) == 0 || len(first.Memory) == 0 {
		t.Errorf("%+v", first)
	}
	if err := p.Fabric.(rdma.NodeKiller).KillNode(1); err != nil {
		t.Fatal(err)
	}
	if broken := s.Look(now.Add(time.Second)); broken.Whole || broken.Nodes[1].Up || broken.MayDie != first.MayDie-1 ||
		len(broken.Fill) == 0 {
		t.Errorf("%+v", broken)
	}
	spare := sampleOf(&ops.State{Store: "fusee", Nodes: []ops.Node{{Up: true}, {Gone: true}}}, 1)
	if !spare.Whole || spare.Spares != 0 {
		t.Errorf("without a spare, which held nothing: %+v", spare)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fabrics.Remove(addr, true); err != nil {
		t.Fatal(err)
	}
	out := s.Look(now.Add(2 * time.Second))
	if out.Whole || !strings.Contains(out.Problem, addr) || len(out.Nodes) != 4 || out.Store != "fusee" {
		t.Errorf("%+v", out)
	}
	p = make()
	defer p.Close()
	if again := s.Look(now.Add(3 * time.Second)); again.Problem != "" || !again.Whole {
		t.Errorf("%+v", again)
	}
}

// TestSamplerOf looks at open pools: it closes none, and when one is gone it looks at no other one
// of that address.
func TestSamplerOf(t *testing.T) {
	shm := fmt.Sprintf("shm:farkv-test-sampler-of-%d", os.Getpid())
	for _, addr := range []string{"mem:", shm} {
		p, err := stores.Create(addr, "fusee", stores.Params{Records: 1000})
		if err != nil {
			t.Fatal(err)
		}
		s, now := NewSamplerOf(p), time.Now()
		if first := s.Look(now); first.Problem != "" || !first.Whole || first.Store != "fusee" {
			t.Errorf("%s: %+v", addr, first)
		}
		if addr == shm {
			if err := fabrics.Remove(addr, true); err != nil {
				t.Fatal(err)
			}
			other, err := stores.Create(addr, "swarm", stores.Params{Records: 1000})
			if err != nil {
				t.Fatal(err)
			}
			if gone := s.Look(now.Add(time.Second)); gone.Problem == "" || gone.Whole || gone.Store != "fusee" {
				t.Errorf("%s is gone: %+v", addr, gone)
			}
			if err := errors.Join(s.Close(), p.Close(), other.Close(), fabrics.Remove(addr, true)); err != nil {
				t.Error(err)
			}
			continue
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		store, ep, err := p.Worker("test", stores.Options{})
		if err != nil {
			t.Fatalf("the sampler closed the pool: %v", err)
		}
		if err := errors.Join(store.Close(), ep.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	}
}

// BenchmarkSampler is what a look costs. Where memory nodes are processes the looks at them come in
// addition.
func BenchmarkSampler(b *testing.B) {
	addr := fmt.Sprintf("shm:farkv-test-sampler-%d", os.Getpid())
	p, err := stores.Create(addr, "fusee", stores.Params{Records: 1000})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		p.Close()
		_ = fabrics.Remove(addr, true)
	}()
	s := NewSampler(addr)
	defer s.Close()
	for b.Loop() {
		if x := s.Look(time.Now()); x.Problem != "" {
			b.Fatal(x.Problem)
		}
	}
}
