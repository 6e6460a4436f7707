package simulate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// TestReplicated: the same calls give the same result; logs of many writers amplify what one log
// does not; half of the calls are PUTs, and what takes no bandwidth is not busy.
func TestReplicated(t *testing.T) {
	p, err := (&Workload{Name: "rowan-zippydb-a", Records: 1}).Read()
	if err != nil {
		t.Fatal(err)
	}
	spec, err := runner.ReadSpec(p)
	if err != nil {
		t.Fatal(err)
	}
	calls := Replicated{
		Profile: "rowan-testbed", Scale: 8, Servers: 3, Workers: 24, Replicas: 3, Spec: spec, Puts: 50, Clients: 90,
		Keys:   10,
		WarmUp: 30 * time.Microsecond, Duration: 150 * time.Microsecond, Seed: 1,
	}
	run := func(k kv.Kind, hardware ...string) *Served {
		c := calls
		c.Kind, c.Hardware = k, hardware
		s, err := c.Run(context.Background())
		if err != nil {
			t.Fatalf("%s: %v", k, err)
		}
		return s
	}
	ring := run(kv.Rowan)
	if again := run(kv.Rowan); fmt.Sprint(again) != fmt.Sprint(ring) {
		t.Errorf("%+v and %+v", ring, again)
	}
	if n := len(ring.Put); n < 100 || n < len(ring.Get)*3/4 || n > len(ring.Get)*4/3 {
		t.Errorf("%d PUTs and %d GETs", n, len(ring.Get))
	}
	many := run(kv.RWrite)
	if many.DLWA < 1.1*ring.DLWA {
		t.Errorf("RWrite-KV has a DLWA of %.2f, and Rowan-KV of %.2f", many.DLWA, ring.DLWA)
	}
	// an entry goes to two backups, in a round trip each, which a PUT waits for
	for _, s := range []*Served{ring, many} {
		least, most := slices.Min(s.Persist), slices.Max(s.Persist)
		n := len(s.Persist)
		if n < 3*len(s.Put)/2 || n > 3*len(s.Put) || least < 2*time.Microsecond || most > slices.Max(s.Put) {
			t.Errorf("%d entries of %d PUTs persist in %v to %v", n, len(s.Put), least, most)
		}
	}
	if s := run(kv.RPC); len(s.Persist) > 0 {
		t.Errorf("%d entries of RPC-KV persist", len(s.Persist))
	}
	calls.Clients = 9
	soon := run(kv.Batch)
	calls.GatherFor = 20 * time.Microsecond
	late := run(kv.Batch)
	if a, b := slices.Max(soon.Put), slices.Max(late.Put); a > calls.GatherFor || b < calls.GatherFor {
		t.Errorf("PUTs take up to %v when entries are gathered for %v, and else %v", b, calls.GatherFor, a)
	}
	calls.Clients, calls.GatherFor = 90, 0
	if free := run(kv.Rowan, "PMem.WriteBandwidth=1e12", "PMem.ReadBandwidth=1e12"); free.Media > ring.Media/10 ||
		free.Rate < ring.Rate {
		t.Errorf("with modules that take no time %+v, and else %+v", free, ring)
	}
	for _, change := range []func(*Replicated){
		func(c *Replicated) { c.Profile = "fusee-testbed" },
		func(c *Replicated) { c.Scale = 25 },
		func(c *Replicated) { c.Replicas = 4 },
		func(c *Replicated) { c.Duration = 0 },
	} {
		c := calls
		change(&c)
		if _, err := c.Run(context.Background()); !errors.As(err, new(*workloads.UsageError)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
