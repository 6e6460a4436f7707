package simulate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// cuckoos is a small run of RCuckoo on its testbed, with keys and values as in its paper.
func cuckoos(t *testing.T, clients int, ops int64, props ...string) Config {
	t.Helper()
	c := config(t, "rcuckoo-a", clients, ops, props...)
	c.Store, c.Profile, c.Spec.ShortKeys = "rcuckoo", "rcuckoo-testbed", workloads.NumberBytes
	c.Pool = stores.Params{Nodes: 1, Records: c.Pool.Records,
		Own: stores.Values{"key-bytes": 4, "value-bytes": 4, "inline-bytes": 4}}
	return c
}

// TestDevice: the locks lie in the NIC's memory unless they are not to. There they are faster to
// take, and a fence behind them costs no time unless it is to stall; trips count it anyhow.
func TestDevice(t *testing.T) {
	median := func(differ func(*Config)) float64 {
		c := cuckoos(t, 1, 400)
		differ(&c)
		r := simulated(t, c)
		if there := c.Profile == "rcuckoo-testbed" && !c.NoDevice; r.Failed > 0 || r.PairBytes != 8 ||
			(r.DeviceBytes > 0) != there {
			t.Errorf("%d operations failed, of pairs of %d bytes, with %d bytes in the NIC", r.Failed, r.PairBytes,
				r.DeviceBytes)
		}
		return r.Call("UPDATE").Latency.P50
	}
	device := median(func(*Config) {})
	stalled := median(func(c *Config) { c.StallFences = true })
	host := median(func(c *Config) { c.NoDevice = true })
	elsewhere := median(func(c *Config) { c.Profile = "swarm-testbed" })
	apart := median(func(c *Config) { c.Profile, c.NoDevice = "swarm-testbed", true })
	if device+0.8 > stalled || stalled+0.2 > host {
		t.Errorf("an UPDATE takes %.2f µs, %.2f if fences stall, %.2f with locks in the node's memory", device,
			stalled, host)
	}
	if elsewhere != apart {
		t.Errorf("%.2f and %.2f µs on NICs without memory", elsewhere, apart)
	}
}

// TestVictims: a client that dies in the middle of an INSERT blocks others for about one failure
// timeout, or longer if they meet what two such clients left. Any client can then insert what a
// dead one began to insert.
func TestVictims(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	const timer = 2 * time.Millisecond
	const us = float64(timer) / float64(time.Microsecond)
	c := cuckoos(t, 8, 0)
	c.Duration, c.Options.Own, c.Pool.Own["rows-per-lock"] = 20*time.Millisecond,
		stores.Values{"failure-timer": timer}, 64
	calm := simulated(t, c)
	c.Failures = 1000
	r := simulated(t, c)
	if r.Failed > 0 || r.LongestGap > 3*us || r.LongestGap < us/2 || calm.LongestGap > us/2 {
		t.Errorf("%d operations failed: %s; a client finished nothing for %.0f µs, without failures for %.0f", r.Failed,
			r.Error, r.LongestGap, calm.LongestGap)
	}
	c.Duration, c.Failures = 100*time.Millisecond, 200
	alone, err := Stranded(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	l := alone.Call("INSERT").Latency
	if l.Count != 20 || l.P50 < us/2 || l.Max > us {
		t.Errorf("%+v", l)
	}
	c.Duration, c.Ops = 0, 100
	var use *workloads.UsageError
	if _, err := Run(context.Background(), c); !errors.As(err, &use) {
		t.Errorf("failures without a duration: %v", err)
	}
}

func TestShortKeys(t *testing.T) {
	c := cuckoos(t, 1, 100, "keyprefix=user")
	if _, err := Run(context.Background(), c); !errors.Is(err, client.ErrTooLarge) {
		t.Errorf("keys that are no numbers: %v", err)
	}
}
