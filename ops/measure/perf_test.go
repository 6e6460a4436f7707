package measure

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/ibverbs"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/simulate"
)

func quick(fabrics ...string) *Perf {
	return &Perf{
		Fabrics: fabrics, Profile: "swarm-testbed", Sizes: []int{8, 1000, 4096}, Batches: []int{1, 4}, Memory: 1 << 20,
		Time: time.Hour, Ops: 400,
		Seed: 1,
	}
}

// Every verb is measured as often as was asked for, and costs what one verb costs.
func TestPerf(t *testing.T) {
	defer goleak.VerifyNone(t)
	r, err := quick("mem", "sim").Run(context.Background())
	if err != nil || len(r.Fabrics) != 2 {
		t.Fatalf("%v, %+v", err, r)
	}
	for _, f := range r.Fabrics {
		if len(f.Verbs) != 5*3+5 || f.Virtual == (f.Clock > 0) {
			t.Errorf("%s: %d verbs, clock %v", f.Fabric, len(f.Verbs), f.Clock)
		}
		for _, v := range f.Verbs {
			l := v.Latency
			if l.Count != 400 || l.Min > l.P50 || l.P50 > l.P99 || l.P99 > l.Max || l.Mean < l.Min || l.P50 <= 0 {
				t.Errorf("%s: %s: %+v", f.Fabric, v.Verb, l)
			}
			checkCost(t, f.Fabric, &v)
		}
	}
}

func checkCost(t *testing.T, fabric string, v *VerbPerf) {
	t.Helper()
	one := VerbCost{Verbs: 1, Doorbells: 1, Trips: 1}
	batches := []int{1, 4}
	switch v.Verb {
	case "call":
		one.Doorbells, batches = 0, []int{1}
	case "APPEND": // a SEND, and a READ
		one.Verbs = 2
	case "FAA, WRITE":
		one = VerbCost{Verbs: 3, Doorbells: 2, Trips: 2}
	case "request":
		one.Verbs, one.Doorbells, batches = 2, 2, []int{1}
		v.Cost.Trips, v.Rates[0].Cost.Trips = 1, 1 // the answer may come before word that the request was delivered
	}
	if v.Cost != one || len(v.Rates) != len(batches) {
		t.Fatalf("%s: %s: %+v, %d rates", fabric, v.Verb, v.Cost, len(v.Rates))
	}
	for i, n := range batches {
		r := v.Rates[i]
		want := VerbCost{Verbs: one.Verbs, Doorbells: one.Doorbells / float64(n), Trips: one.Trips / float64(n)}
		if r.Batch != n || r.Cost != want || r.Operations != 400 || r.PerSecond <= 0 || (r.MB > 0) != (v.Bytes > 0) {
			t.Errorf("%s: %s: %+v", fabric, v.Verb, r)
		}
	}
}

// A model's times are the same each time, and what the paper says: SWARM 7.1, a READ of 64 B takes
// 1.9 µs, a WRITE 1.6.
func TestPerfInVirtualTime(t *testing.T) {
	p := quick("sim")
	p.Sizes = []int{64}
	first, err := p.Run(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	second, err := p.Run(context.Background())
	if err != nil || !reflect.DeepEqual(first, second) {
		t.Errorf("%v: twice the same is\n%+v\n%+v", err, first, second)
	}
	verbs := first.Fabrics[0].Verbs
	if read, write := verbs[0].Latency.P50, verbs[1].Latency.P50; read < 1.8 || read > 2 || write < 1.5 || write > 1.7 {
		t.Errorf("a READ takes %v µs, a WRITE %v", read, write)
	}
	if four := verbs[0].at(4).PerSecond; four < 2*verbs[0].at(1).PerSecond {
		t.Errorf("%v READs a second, four in flight %v", verbs[0].at(1).PerSecond, four)
	}
}

// onGauge runs a task with a gauge in virtual time.
func onGauge(t *testing.T, task func(g *gauge) error) error {
	t.Helper()
	p := quick()
	return simulate.Bare("swarm-testbed", p.Memory, 1, func(f rdma.Fabric, ep rdma.Endpoint) error {
		g := newGauge(context.Background(), p, f, lacks{ep})
		defer g.close()
		return errors.Join(g.fill(), task(g))
	})
}

// lacks is an endpoint without masked CAS: it changes nothing, and fails.
type lacks struct{ rdma.Endpoint }

func (e lacks) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) { return rdma.Listen(e.Endpoint, o) }

func (e lacks) Rings() (rdma.RingPromises, error) { return rdma.Rings(e.Endpoint) }

func (e lacks) OpenRing(o rdma.RingOptions) (rdma.Ring, error) { return rdma.OpenRing(e.Endpoint, o) }

func (e lacks) Post(b *rdma.Batch) error {
	for i := range b.Len() {
		if op := b.Op(i); op.Verb == rdma.MaskedCompareSwap {
			return fmt.Errorf("%s: %w", op.Verb, rdma.ErrNotSupported)
		}
	}
	return e.Endpoint.Post(b)
}

// A verb that a fabric does not have is left out, and said so.
func TestPerfWithoutMaskedCAS(t *testing.T) {
	if err := onGauge(t, func(g *gauge) error {
		for _, v := range g.verbs() {
			m, err := g.verb(&v)
			if err != nil {
				return err
			}
			if missing := v.name == "masked CAS"; (m.Missing != "") != missing || (m.Latency.Count == 0) != missing {
				t.Errorf("%s: %+v", v.name, m)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// device is a fabric that calls libibverbs nine times from one question to the next.
type device struct {
	rdma.Fabric
	posts uint64
}

func (d *device) Port() (string, int) { return "no such device", 1 }

func (d *device) Stats() ibverbs.Stats {
	d.posts += 6
	return ibverbs.Stats{Posts: d.posts, Polls: d.posts / 2}
}

// adapter is an endpoint that called libibverbs three times since it told so: in its first batch.
type adapter struct {
	rdma.Endpoint
	posts uint64
}

func (a *adapter) Untold() ibverbs.Stats { return ibverbs.Stats{Posts: a.posts} }

func (a *adapter) Post(b *rdma.Batch) error {
	a.posts = 3
	return a.Endpoint.Post(b)
}

// Calls into libibverbs are counted for each verb.
func TestPerfLibraryCalls(t *testing.T) {
	if err := onGauge(t, func(g *gauge) error {
		g.pool, g.ep = &device{Fabric: g.pool}, &adapter{Endpoint: g.ep}
		g.aim(8)
		r, err := g.run(&g.verbs()[0], 1, time.Hour, 3, nil)
		if r.Cost.Library != 4 { // 9 calls and 3, 3 verbs
			t.Errorf("%+v", r.Cost)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// An atomic that returns a wrong value ends the measurement. Here the test pretends that another
// client changed the word.
func TestPerfChecksAnswers(t *testing.T) {
	for _, name := range []string{"CAS", "FAA"} {
		err := onGauge(t, func(g *gauge) error {
			for _, v := range g.verbs() {
				if v.name != name {
					continue
				}
				if _, err := g.verb(&v); err != nil {
					return err
				}
				g.words[(g.turn+1)%words] += 7
				_, err := g.verb(&v)
				if !errors.Is(err, errAnswer) {
					t.Errorf("%s: %v", name, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestPerfMisuse(t *testing.T) {
	for says, change := range map[string]func(*Perf){
		"--sizes: 0 bytes":        func(p *Perf) { p.Sizes = []int{0} },
		"--batches: 257":          func(p *Perf) { p.Batches = []int{257} },
		"are in flight, and 64":   func(p *Perf) { p.Batches, p.Sizes = []int{256}, []int{1 << 20} },
		`unknown fabric "ib"`:     func(p *Perf) { p.Fabrics = []string{"ib"} },
		"want 8192 bytes":         func(p *Perf) { p.Memory = 8191 },
		"--ops and --time":        func(p *Perf) { p.Ops = 0 },
		"nothing to measure":      func(p *Perf) { p.Fabrics = nil },
		`no hardware profile "x"`: func(p *Perf) { p.Pool = "sim:x" },
		"bad pool address":        func(p *Perf) { p.Pool = "ftp:x" },
	} {
		p := quick("mem")
		change(p)
		if _, err := p.Run(context.Background()); !runner.Misused(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	p := quick("mem")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestPerfPrint(t *testing.T) {
	f := FabricPerf{Fabric: "tcp", Pool: "tcp:h:1", Nodes: 1, Clock: 38, Verbs: []VerbPerf{
		{Verb: "READ", Bytes: 4096, Latency: runner.Latency{Count: 1, Min: 1, P50: 2, P99: 3, P999: 4, Max: 5,
			Mean: 2.5},
			Cost:  VerbCost{1, 1, 1, 2.5, 1, 4},
			Rates: []Rate{{Batch: 16, PerSecond: 1e6, MB: 4096, Cost: VerbCost{1, 0.0625, 0.0625, 0.125, 0.5, 4}}}},
		{Verb: "masked CAS", Missing: "not supported"},
	}}
	p := Performance{Memory: 4 << 20, Batches: []int{16}, Fabrics: []FabricPerf{f},
		Skipped: map[string]string{"rdma": "there is none"}}
	for _, c := range []struct {
		what  string
		lines []string
	}{
		{"one", []string{"tcp:h:1, 1 memory node, one worker, verbs over 4 MiB\n",
			"\nREAD           4 KiB  1.0 µs  2.0 µs ", "\nmasked CAS                 -\n",
			"which takes 38 ns\n", "   1.00       1.00   1.00        2.50  1.0/4.0\n",
			"\nREAD        4 KiB  1.00 M  4,096       0.06   0.06        0.12  0.5/4.0\n",
			"\nrdma: skipped: there is none\n"}},
		{"two", []string{"\none at a time            tcp     tcp\n", "\nREAD           4 KiB  2.0 µs  2.0 µs\n",
			"\nmasked CAS                 -       -\n", "\nREAD              4 KiB  1.00 M  1.00 M\n"}},
	} {
		var out strings.Builder
		p.Print(&out)
		for _, line := range c.lines {
			if !strings.Contains(out.String(), line) {
				t.Errorf("%s: no %q in\n%s", c.what, line, out.String())
			}
		}
		p.Fabrics = append(p.Fabrics, f)
	}
}
