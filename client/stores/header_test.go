package stores_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// In a pool that is shared with other users any of them may write the header. Whatever numbers it
// holds, opening the pool ends without a panic, and takes no memory by them.
func TestHeadersOfOthers(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("one worker at a time; run without -race")
	}
	for _, name := range stores.Names() {
		t.Run(name, func(t *testing.T) {
			kind, err := stores.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			p := kind.Size(stores.Params{Records: 100, PairBytes: 64, Clients: 8})
			f, err := fabrics.Create("mem:", fabrics.Geometry{Nodes: p.Nodes, Memory: p.Memory, Clients: p.Clients},
				func(f rdma.Fabric) error { return kind.Make(f, p) })
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			ep, err := f.Open("writer")
			if err != nil {
				t.Fatal(err)
			}
			defer ep.Close()
			h, err := node.ReadHeader(ep, f.Nodes())
			if err != nil {
				t.Fatal(err)
			}
			var params map[string]any
			if err := json.Unmarshal(h.Params, &params); err != nil {
				t.Fatal(err)
			}
			for _, changed := range variants(params) {
				h.Params, _ = json.Marshal(changed.params)
				if err := node.WriteHeader(f, ep, h); err != nil {
					t.Fatal(err)
				}
				if err := opens(kind, f); err != nil {
					t.Errorf("%s: %v", changed.what, err)
				}
			}
		})
	}
}

type variant struct {
	what   string
	params map[string]any
}

// variants returns parameters with one number changed, also in objects within.
func variants(params map[string]any) (all []variant) {
	for _, name := range slices.Sorted(maps.Keys(params)) {
		switch v := params[name].(type) {
		case map[string]any:
			for _, within := range variants(v) {
				p := maps.Clone(params)
				p[name] = within.params
				all = append(all, variant{name + "." + within.what, p})
			}
		case float64:
			for _, n := range []int64{-1, 0, 1, 7, 1 << 10, 1 << 16, 1<<20 - 1, 1 << 24, 1 << 31, 1 << 40, 1 << 47,
				math.MaxInt64} {
				p := maps.Clone(params)
				p[name] = n
				all = append(all, variant{fmt.Sprintf("%s=%d", name, n), p})
			}
		}
	}
	return all
}

// mostAllocated bounds what opening the pool may allocate: half of it is what a worker takes of the
// largest pairs that there can be.
const mostAllocated = 128 << 20

// opens opens a worker's view and closes it. What Open answers is no matter. Close may time out,
// since a pool's timeout may be a microsecond here.
func opens(kind *stores.Kind, f rdma.Fabric) (err error) {
	ep, err := f.Open("reader")
	if err != nil {
		return err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it panics: %v", r)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > mostAllocated {
			err = errors.Join(err, fmt.Errorf("it allocates %d bytes", n))
		}
		err = errors.Join(err, ep.Close())
	}()
	if s, err := kind.Open(ep, stores.Options{}); err == nil {
		if err := s.Close(); !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
	}
	return nil
}
