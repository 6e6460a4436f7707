package telemetry

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/workloads/check/wait"
)

// The roles of a child: "tell POOL LIFE" publishes as fast as it can, "look POOL" looks as fast as
// it can, until it is killed.
func childMain(args []string) error {
	f, err := shm.Open(args[1], nil)
	if err != nil {
		return err
	}
	defer f.Close()
	open := f.Open
	if args[0] == "look" {
		open = f.Peek
	}
	ep, err := open(args[0])
	if err != nil {
		return err
	}
	r, err := Find(ep, f.Nodes())
	if err != nil {
		return err
	}
	if args[0] == "look" {
		fmt.Println("looks")
		for d := NewReader(r); err == nil; {
			_, _, err = d.Processes(ep, time.Now())
		}
		return err
	}
	life, err := strconv.ParseUint(args[2], 10, 64)
	w := NewWriter(r, life)
	for k := uint64(1); err == nil; k++ {
		if err = w.Publish(ep, told(life, k, time.Now().UTC().Truncate(time.Microsecond))); k == 1 {
			fmt.Println("tells")
		}
	}
	return err
}

// killed is a pool of shared memory with a region.
func killed(t *testing.T, records int) (*shm.Fabric, rdma.Endpoint, *Region) {
	t.Helper()
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	g := shm.Geometry{Nodes: 2, Memory: 8192, Clients: 4, Telemetry: Bytes(records)}
	f, err := shm.Create("p", g, nil, func(f *shm.Fabric) error {
		ep, err := f.Open("format")
		if err != nil {
			return err
		}
		return errors.Join(node.WriteHeader(f, ep, node.Header{Store: "none", Params: []byte("{}")}), ep.Close(),
			Format(f, records))
	})
	if err != nil {
		t.Fatal(err)
	}
	ep, err := f.Peek("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(ep.Close(), f.Close()); err != nil {
			t.Error(err)
		}
	})
	r, err := Find(ep, 2)
	if err != nil || r.Records() != records || f.Size() != g.Memory {
		t.Fatalf("%+v in a pool of %d bytes a node: %v", r, f.Size(), err)
	}
	return f, ep, r
}

// hasty is an endpoint with a fast clock: StaleAfter is 50 ms.
type hasty struct{ rdma.Endpoint }

func (h hasty) Now() time.Duration { return h.Endpoint.Now() * (StaleAfter / (50 * time.Millisecond)) }

// TestKilled kills processes that publish and processes that look: what is seen was told as a
// whole, one that is killed while it looks leaves nothing, and the record of one that told is free
// soon.
func TestKilled(t *testing.T) {
	f, ep, r := killed(t, 1)
	for life := uint64(1); life <= 6; life++ {
		p, looks := child.Start(t, "tell", "p", fmt.Sprint(life)), child.Start(t, "look", "p")
		p.Line(t)
		looks.Line(t)
		d, last := NewReader(r), uint64(0)
		for until := time.Now().Add(50 * time.Millisecond); time.Now().Before(until); {
			all, more, err := d.Processes(ep, time.Now())
			if err != nil || more > 0 || len(all) != 1 || !isTold(&all[0]) || all[0].Life != life ||
				all[0].Calls < last {
				t.Fatalf("%+v, and %d more (%v), behind %d", all, more, err, last)
			}
			last = all[0].Calls
		}
		looks.Kill()
		p.Kill()
		for _, c := range f.Clients() {
			if c.Name != "tell" || c.Alive {
				t.Errorf("behind the kill there is %+v", c)
			}
			if err := errors.Join(f.RevokeLife(c), f.Forget(c)); err != nil {
				t.Error(err)
			}
		}
		if all, _, err := d.Processes(ep, time.Now()); err != nil || len(all) != 1 || !isTold(&all[0]) ||
			all[0].Calls < last {
			t.Errorf("behind the kill there is %+v (%v)", all, err)
		}
		if all, more, err := NewReader(r).Processes(ep, time.Now().Add(StaleAfter)); err != nil || len(all)+more > 0 {
			t.Errorf("later there is %+v, and %d more (%v)", all, more, err)
		}
		take(t, f, r)
	}
}

// take takes the records of a process that is gone, on both nodes, and gives them back.
func take(t *testing.T, f rdma.Fabric, r *Region) {
	t.Helper()
	own, err := f.Open("next")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	const life = 1 << 40
	next := NewWriter(r, life)
	alone := func() bool {
		all, more, err := NewReader(r).Processes(own, time.Now())
		return err == nil && more == 0 && len(all) == 1 && all[0].Life == life
	}
	for until := time.Now().Add(wait.Hang); !alone(); time.Sleep(5 * time.Millisecond) {
		if err := next.Publish(hasty{own}, told(life, 1, time.Now())); err != nil || time.Now().After(until) {
			t.Fatalf("the records of a process that is gone are not another's: %v", err)
		}
	}
	next.Release(own)
}

// TestOlderPool: the pool of a program that knew of no telemetry says so, and so does one with
// another layout.
func TestOlderPool(t *testing.T) {
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: 8192, Clients: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ep, err := f.Open("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	if err := errors.Join(Format(f, Records), node.WriteHeader(f, ep, node.Header{Store: "none"})); err != nil {
		t.Fatal(err)
	}
	if _, err := Find(ep, 1); !errors.Is(err, ErrNone) {
		t.Errorf("a pool without telemetry: %v", err)
	}
	h := node.Header{Store: "none", Nodes: 1, Size: 4096, Telemetry: 4096}
	if _, err := FindBehind(ep, h); !errors.Is(err, ErrVersion) {
		t.Errorf("a region without a header: %v", err)
	}
	if err := At(4096, 1, 2).Format(ep); err != nil {
		t.Fatal(err)
	}
	if _, err := FindBehind(ep, h); !errors.Is(err, ErrVersion) {
		t.Errorf("a region with more records than there is room for: %v", err)
	}
	h.Telemetry = uint32(Bytes(2))
	if r, err := FindBehind(ep, h); err != nil || r.Records() != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

func init() { childMains = childMain }
