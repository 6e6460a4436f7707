package sim_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestProfiles checks that the parts of a round trip add up to what is known of each testbed.
func TestProfiles(t *testing.T) {
	known := map[string]struct{ read, write time.Duration }{
		"fusee-testbed":   {read: 2000},
		"rcuckoo-testbed": {read: 2000},
		"rowan-testbed":   {read: 2000},
		"rtx-testbed":     {read: 2000},
		"swarm-testbed":   {read: 1900, write: 1600},
	}
	var names []string
	for _, p := range sim.Profiles() {
		names = append(names, p.Name)
		want, ok := known[p.Name]
		if !ok || p.Doc == "" || p.Source == "" {
			t.Errorf("%s is not known, or does not say where it is from", p.Name)
		}
		read := idle(t, p.Options(1, 0), func(b *rdma.Batch) { b.Read(rdma.At(0, 0), 64) })
		write := idle(t, p.Options(1, 0), func(b *rdma.Batch) { b.Write(rdma.At(0, 0), b.Alloc(64)) })
		near(t, p.Name+": a READ of 64 B in ns", float64(read), float64(want.read), 0.02)
		if want.write > 0 {
			near(t, p.Name+": a WRITE of 64 B in ns", float64(write), float64(want.write), 0.02)
		}
		hot := open(t, p.Options(1, 1))
		rate := bench(t, hot, 64, 200, func(_, _ int, b *rdma.Batch) { b.CompareSwap(rdma.At(0, 0), 0, 0) })
		near(t, p.Name+": CASes of one word", rate, p.Hardware.AtomicWordMops, 0.05)
	}
	if len(names) != len(known) || !slices.IsSorted(names) {
		t.Errorf("profiles are %v", names)
	}
}

// TestProfilesSaturate: 1 KB READs of a profile's clients, all of them, saturate one node's link or
// PCIe.
func TestProfilesSaturate(t *testing.T) {
	for _, p := range sim.Profiles() {
		s := open(t, p.Options(1, 1))
		rate := bench(t, s, p.ComputeNodes*p.ClientsPerNode, 60, read(0, 1024))
		h := p.Hardware
		link, pcie := h.LinkGbps*1e3/8/float64(1024+h.Header+4), h.PCIeGbps*1e3/8/1024
		near(t, p.Name+": million READs of 1 KB", rate, min(link, pcie), 0.06)
		if n := len(s.Usage()); n != 1+p.ComputeNodes {
			t.Errorf("%s: %d machines", p.Name, n)
		}
	}
}

func TestProfileOptions(t *testing.T) {
	p, err := sim.LookupProfile("rowan-testbed")
	if err != nil || p.Name != "rowan-testbed" {
		t.Fatal(p.Name, err)
	}
	own, more := p.Options(3, 0), p.Options(3, 20)
	if own.Nodes != p.Nodes || more.Nodes != 20 || own.Seed != 3 || !own.Reorder || own.Tear || own.FlyProb != 0 {
		t.Errorf("%+v", own)
	}
	own.Hardware.LinkGbps = 1
	if p.Hardware.LinkGbps == 1 {
		t.Error("options change their profile")
	}
	_, err = sim.LookupProfile("rowan")
	if err == nil ||
		!strings.Contains(err.Error(), `no hardware profile "rowan": there are fusee-testbed, rcuckoo-testbed`) {
		t.Errorf("error is %v", err)
	}
}
