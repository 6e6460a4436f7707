package simulate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// shifts is a run of Rowan-KV on slow machines, in which a shard becomes hot.
func shifts(t *testing.T) Config {
	c := config(t, "rowan-zippydb-b", 20, 0, "requestdistribution=uniform")
	c.Store, c.Profile, c.Slow, c.NodeCores = "rowan", "rowan-testbed", 200, 2
	c.Pool = stores.Params{
		Nodes: 4, Records: uint64(c.Spec.RecordCount), PairBytes: c.Spec.PairBytes(), KeyBytes: c.Spec.KeyBytes(),
		Own: stores.Values{"server-shards": 8},
	}
	c.Duration, c.Interval = 1600*time.Millisecond, 100*time.Millisecond
	c.Shift = Shift{At: 400 * time.Millisecond, Share: 0.9, From: 1, To: 3}
	return c
}

// TestShift: requests are even at first. Then those for one server are for a shard of another,
// which has the most to do until it moves, and in the end they are even again. The same seed gives
// the same.
func TestShift(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	c := shifts(t)
	r := simulated(t, c)
	moved := 0.0
	for _, e := range r.Events {
		if strings.Contains(e.What, "shards move") && moved == 0 {
			moved = e.Seconds
		}
	}
	if at := c.Shift.At.Seconds(); r.Failed > 0 || moved < at || moved > at+1 {
		t.Fatalf("%d failed, and shards move at %.3f s: %v", r.Failed, moved, r.Events)
	}
	for i, p := range r.Points[:len(r.Points)-1] {
		from, to := p.CPU[c.Shift.From], p.CPU[c.Shift.To]
		switch at, next := p.Seconds, r.Points[i+1].Seconds; {
		case at <= c.Shift.At.Seconds() && to > 1.5*from,
			at > c.Shift.At.Seconds()+0.11 && next < moved && to < 3*from,
			at > moved+0.4 && to > 1.5*from:
			t.Errorf("until %.1f s the servers are busy for %.2f and %.2f: %+v", at, from, to, p)
		}
	}
	if one, other := text(t, r), text(t, simulated(t, c)); one != other {
		t.Errorf("the same seed gives\n%s\nand\n%s", one, other)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Store = "fusee" },
		func(c *Config) { c.Shift.Share = 1.1 },
		func(c *Config) { c.Shift.At = -1 },
		func(c *Config) { c.Shift.To = c.Shift.From },
		func(c *Config) { c.Slow = -1 },
	} {
		c := c
		change(&c)
		if _, err := Run(context.Background(), c); !errors.As(err, new(*workloads.UsageError)) {
			t.Errorf("%+v: %v", c.Shift, err)
		}
	}
	c.Shift.To = c.Pool.Nodes
	if _, err := Run(context.Background(), c); !errors.As(err, new(*workloads.UsageError)) {
		t.Errorf("requests shift to server %d of %d: %v", c.Shift.To, c.Pool.Nodes, err)
	}
}

// TestSlow: machines that are ten times slower do a tenth of the operations in a time, and each
// takes ten times as long.
func TestSlow(t *testing.T) {
	c := config(t, "ycsb-b", 8, 2000)
	fast := simulated(t, c)
	c.Slow = 10
	slow := simulated(t, c)
	if times := fast.Throughput / slow.Throughput; times < 9 || times > 11 {
		t.Errorf("%.0f operations a second, and %.0f", fast.Throughput, slow.Throughput)
	}
	if a, b := fast.Call("TOTAL").Latency.P50, slow.Call("TOTAL").Latency.P50; b < 9*a || b > 11*a {
		t.Errorf("a median of %.1f µs, and %.1f", a, b)
	}
}
