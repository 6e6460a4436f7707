package simulate

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// TestReplicated: the same calls give the same result; logs of many writers amplify what one log does not; half of the
// calls are PUTs, and what takes no bandwidth is not busy.
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
		Profile: "rowan-testbed", Scale: 8, Servers: 3, Workers: 24, Replicas: 3, Spec: spec, Puts: 50, Clients: 90, Keys: 10,
		WarmUp: 30 * time.Microsecond, Duration: 60 * time.Microsecond, Seed: 1,
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
	if many := run(kv.RWrite); many.DLWA < 1.1*ring.DLWA {
		t.Errorf("RWrite-KV has a DLWA of %.2f, and Rowan-KV of %.2f", many.DLWA, ring.DLWA)
	}
	if free := run(kv.Rowan, "PMem.WriteBandwidth=1e12", "PMem.ReadBandwidth=1e12"); free.Media > ring.Media/10 || free.Rate < ring.Rate {
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
		if _, err := c.Run(context.Background()); !errors.As(err, new(*workloads.UseError)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
