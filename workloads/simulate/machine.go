package simulate

import (
	"time"

	"github.com/farkv/farkv/node/rdma/sim"
)

// Machine is how busy a machine was while measuring: its rates, and the share of the time in which
// each part of it was in use. A part without messages, or one that takes no time, has 0.
type Machine struct {
	Node    int  `json:"node"`              // its number among the memory nodes, or the compute nodes
	Compute bool `json:"compute,omitempty"` // it is a compute node

	Messages float64 `json:"messages"` // verbs and calls a second
	GbitIn   float64 `json:"gbit_in"`  // on its link, a second, headers and all
	GbitOut  float64 `json:"gbit_out"`

	NIC     float64 `json:"nic"` // at work on verbs
	LinkIn  float64 `json:"link_in"`
	LinkOut float64 `json:"link_out"`
	PCIeIn  float64 `json:"pcie_in"` // memory nodes: between NIC and memory
	PCIeOut float64 `json:"pcie_out"`
	Atomics float64 `json:"atomics"`
	CPU     float64 `json:"cpu"` // of all cores: calls at a memory node; at a compute node, posting and polling
}

func machine(u *sim.NodeUsage, took time.Duration) Machine {
	rate := func(n uint64) float64 { return float64(n) / took.Seconds() }
	share := func(d time.Duration) float64 { return float64(d) / float64(took) }
	return Machine{
		Node: u.Node, Compute: u.Compute,
		Messages: rate(u.Messages), GbitIn: rate(u.BytesIn*8) / 1e9, GbitOut: rate(u.BytesOut*8) / 1e9,
		NIC: share(u.NIC), LinkIn: share(u.LinkIn), LinkOut: share(u.LinkOut),
		PCIeIn: share(u.PCIeIn), PCIeOut: share(u.PCIeOut), Atomics: share(u.Atomics),
		CPU: share(u.CPU) / float64(max(u.Cores, 1)),
	}
}

// meterCPU records the work of the nodes' cores at the first operation of an interval, in runs in
// which requests shift.
func (r *run) meterCPU(now time.Duration) {
	if !r.Shift.happens() || r.Interval == 0 || now < time.Duration(len(r.cpu))*r.Interval {
		return
	}
	var used []time.Duration
	for _, u := range r.sim.Usage()[:r.Nodes] {
		used = append(used, u.CPU)
	}
	for len(r.cpu) <= min(int(now/r.Interval), maxIntervals) {
		r.cpu = append(r.cpu, used)
	}
}

// busy returns how busy the nodes' cores were in an interval; nil: that is not known.
func (r *run) busy(interval int) (shares []float64) {
	if interval+1 >= len(r.cpu) {
		return nil
	}
	for n, used := range r.cpu[interval+1] {
		u := sim.NodeUsage{CPU: used - r.cpu[interval][n], Cores: r.usage[n].Cores}
		shares = append(shares, machine(&u, r.Interval).CPU)
	}
	return shares
}

// Part is a part of a machine and how busy it was.
type Part struct {
	Name string
	Busy float64
}

// Parts lists the parts of m.
func (m *Machine) Parts() []Part {
	return []Part{{"NIC", m.NIC}, {"link in", m.LinkIn}, {"link out", m.LinkOut}, {"PCIe in", m.PCIeIn},
		{"PCIe out", m.PCIeOut}, {"atomics", m.Atomics}, {"CPU", m.CPU}}
}

// Busiest returns the machine and the part that were in use for the largest share of the time; the
// bottleneck when that is close to 1.
func (r *Result) Busiest() (m Machine, p Part) {
	for _, each := range r.Machines {
		for _, part := range each.Parts() {
			if part.Busy > p.Busy {
				m, p = each, part
			}
		}
	}
	return m, p
}
