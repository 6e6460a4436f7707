package simulate

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/sim"
)

func TestHardware(t *testing.T) {
	p, err := sim.LookupProfile("rcuckoo-testbed")
	if err != nil {
		t.Fatal(err)
	}
	o := p.Options(1, 1)
	if err := change(&o, []string{"LinkGbps=200", "Doorbell=100ns", "NodeCores=3", "DeviceFence=false", "DeviceBytes=7",
		"NodeTimeout=1ms"}); err != nil {
		t.Fatal(err)
	}
	h := o.Hardware
	if h.LinkGbps != 200 || h.Doorbell != 100 || h.NodeCores != 3 || h.DeviceFence || h.DeviceBytes != 7 ||
		o.NodeTimeout != time.Millisecond {
		t.Errorf("hardware is %+v, timeout %v", h, o.NodeTimeout)
	}
	if p.Hardware.LinkGbps != 100 {
		t.Error("the profile was changed")
	}
	for _, bad := range []string{"", "LinkGbps", "linkgbps=2", "Doorbell=2", "NodeCores=x", "LinkGbps=fast"} {
		if err := change(&o, []string{bad}); err == nil || !strings.Contains(err.Error(), "DeviceWordMops") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestHardwareCounts: a slower doorbell makes an operation take longer by as much.
func TestHardwareCounts(t *testing.T) {
	took := func(hardware ...string) float64 {
		c := config(t, "ycsb-c", 1, 200)
		c.Hardware = hardware
		r, err := Run(context.Background(), c)
		if err != nil {
			t.Fatal(err)
		}
		return r.Call("READ").At(0.5)
	}
	if was, is := took(), took("Doorbell=1250ns"); is < was+0.9 {
		t.Errorf("%.2f µs with the profile's doorbell, %.2f with one that takes 1 µs longer", was, is)
	}
}
