package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/node/pmem"
)

// Profile is a cluster on which a store was measured.
type Profile struct {
	Name, Doc string
	Source    string // where its figures are from
	// Nodes and ComputeNodes are the machines that there were, and ClientsPerNode the clients of a
	// compute node. ComputeNodes is for callers that start as many clients as the paper had. The
	// pool deals its clients by Hardware.ComputeNodes.
	Nodes, ComputeNodes, ClientsPerNode int
	Hardware                            Hardware
	// PMem are the modules of a node's persistent memory, for Options.PMem; without DIMMs it has
	// none.
	PMem pmem.DeviceConfig
}

// Options returns a pool of that cluster's machines, with so many memory nodes; 0: as many as it
// has. More nodes, or clients, than it has are more machines of the same kind. It measures
// performance: legal reordering is on, tearing and flying verbs are off. Persistent memory is off:
// a caller that wants it sets Options.PMem to a copy of the profile's.
func (p *Profile) Options(seed uint64, nodes int) Options {
	if nodes <= 0 {
		nodes = p.Nodes
	}
	// A copy: what a caller changes in Options.Hardware leaves the profile as it is.
	h := p.Hardware
	h.ClientsPerNode = p.ClientsPerNode
	// There are identities for more clients than any of the papers has, and events for runs of any
	// length. Options.Limit bounds a Run.
	return Options{Seed: seed, Nodes: nodes, Clients: 1 << 12, Hardware: &h, Reorder: true, MaxEvents: 1 << 50}
}

// Profiles returns all profiles, by name. The list is the caller's.
func Profiles() []Profile { return append([]Profile(nil), profiles[:]...) }

// LookupProfile returns the profile of a name. The error of an unknown one lists those that there
// are.
func LookupProfile(name string) (Profile, error) {
	names := make([]string, len(profiles))
	for i, p := range profiles {
		if p.Name == name {
			return p, nil
		}
		names[i] = p.Name
	}
	return Profile{}, fmt.Errorf("no hardware profile %q: there are %s", name, strings.Join(names, ", "))
}

// The machines of the five papers, by name. A figure without a source is our estimate: none of the
// papers says how its round trip divides between CPU, PCIe and wire, so those parts are chosen to
// add up to what the paper, or in general Rowan 2.2 ("2 µs"), says of a small READ. TestProfiles
// shows what they add up to.
var profiles = [...]Profile{
	{
		Name: "fusee-testbed",
		Doc: "CloudLab APT: 5 memory and 17 compute nodes, 8-core Xeon E5-2450, 56 Gbit/s ConnectX-3 InfiniBand; " +
			"8 clients a compute node",
		Source: "FUSEE 6.1, 6.2",
		Nodes:  5, ComputeNodes: 17, ClientsPerNode: 8,
		Hardware: Hardware{
			LinkGbps:    54.5, // FDR: four lanes of 14.0625 Gbaud, 64 of 66 bits
			Header:      infinibandHeader,
			MTU:         4096, // the largest there is
			Propagation: 565, PCIe: 400,
			ClientMops: 26, NodeMops: 26, // READs, by Kalia et al., SIGCOMM 2014, on this NIC and cluster
			PCIeGbps:   53,                       // 3.0, 8 lanes of 8 Gbaud, 128 of 130 bits, 24 B beside each 128 B
			AtomicMops: 2.7, AtomicWordMops: 2.4, // ConnectX-3 does atomics one after the other; no device memory
			DeviceMops: 2.7, DeviceWordMops: 2.4,
			Doorbell: 250, Verb: 50, Poll: 150, // a core of 2.1 GHz; SWARM's of 3.6 GHz spends 200 and more
			// Calls are datagrams of a kernel, received by a process that sleeps till then (6.1).
			NodeCores: 8, ServiceTime: 5 * time.Microsecond, CallLatency: 20 * time.Microsecond,
		},
	},
	{
		Name: "rcuckoo-testbed",
		Doc: "1 memory and 8 compute nodes, two Xeon E5-2650, 100 Gbit/s ConnectX-5 Ethernet; 40 clients a " +
			"compute node",
		Source: "RCuckoo 2.2, 5.2, 5.3",
		Nodes:  1, ComputeNodes: 8, ClientsPerNode: 40, // 320 clients in all are its heavy load (5.3)
		Hardware: Hardware{
			ComputeNodes: 8, // "spreading threads evenly across machines" (5.2)
			LinkGbps:     100, Header: roceHeader, MTU: 4096,
			Propagation: 615, PCIe: 300,
			ClientMops: 75, NodeMops: 75, PCIeGbps: gen3x16, // Rowan 6.2: the most a 100 Gbit/s RNIC can do
			AtomicMops: 50, AtomicWordMops: 3, // 2.2, figures 1b and 1c
			DeviceMops: 75, DeviceWordMops: 9, // taken from its statement: three times as many on one word (2.2)
			DeviceBytes: 256 << 10, // 2.2
			DeviceFence: true,      // "without incurring a performance penalty" (3.2.2, footnote 1)
			Doorbell:    250, Verb: 50, Poll: 150,
			NodeCores: 1, ServiceTime: 2 * time.Microsecond,
		},
	},
	{
		Name: "rowan-testbed",
		Doc: "6 servers with three Optane DIMMs each and 8 client machines, 18-core Xeon Gold 6240M, " +
			"100 Gbit/s ConnectX-5 InfiniBand",
		Source: "Rowan 2.2, 3.2.1, 6.1, 6.2, 6.3",
		Nodes:  6, ComputeNodes: 8, ClientsPerNode: 36, // as many as a machine's logical cores
		Hardware: Hardware{
			ComputeNodes: 8,
			LinkGbps:     100, Header: infinibandHeader, MTU: 4096,
			Propagation: 650, PCIe: 300, // 2 µs (2.2)
			ClientMops: 75, NodeMops: 75, PCIeGbps: gen3x16, // 6.2
			PersistMops: 54.5, // fitted: what the NIC does of 64 B without other writers (6.2)
			// A sequencer in device memory does less than 10 M FAAs a second (3.2.1); the rest is
			// RCuckoo's, of the same NIC.
			AtomicMops: 50, AtomicWordMops: 3, DeviceMops: 75, DeviceWordMops: 9, DeviceBytes: 256 << 10,
			Doorbell: 200, Verb: 40, Poll: 150,
			// 24 cores of each of six servers do 108 M operations a second with 5 % PUTs (6.3).
			NodeCores: 24, ServiceTime: 1300,
			NTStore: 100, // "100ns when persisting small data" (1)
		},
		PMem: pmem.Testbed(),
	},
	{
		Name: "rtx-testbed",
		Doc: "1 memory and 5 compute nodes, two 12-core Xeon E5-2650 v4, two 100 Gbit/s ConnectX-4 InfiniBand each; " +
			"24 clients a compute node",
		Source: "rTX 6",
		Nodes:  1, ComputeNodes: 5, ClientsPerNode: 24,
		Hardware: Hardware{
			ComputeNodes: 5,
			LinkGbps:     2 * 100, Header: infinibandHeader, MTU: 4096,
			Propagation: 637, PCIe: 300,
			ClientMops: 2 * 75, NodeMops: 2 * 75, PCIeGbps: 2 * gen3x16,
			AtomicMops: 2 * 50, AtomicWordMops: 3, // RCuckoo's, of the next NIC; a word is on one NIC's way
			DeviceMops: 2 * 75, DeviceWordMops: 9,
			Doorbell: 220, Verb: 50, Poll: 150,
			NodeCores: 1, ServiceTime: 2 * time.Microsecond,
		},
	},
	{
		Name: "swarm-testbed",
		Doc: "4 memory nodes with ConnectX-4 and 4 compute nodes with ConnectX-6, 8-core Xeon Gold 6244, 100 Gbit/s " +
			"InfiniBand; 16 clients a compute node",
		Source: "SWARM 7, Table 1, 7.1, 7.2",
		Nodes:  4, ComputeNodes: 4, ClientsPerNode: 16, // 64 clients on both threads of one socket's cores (7.3)
		Hardware: Hardware{
			ComputeNodes: 4,
			LinkGbps:     100, Header: infinibandHeader, MTU: 4096,
			Propagation: 565, PCIe: 300, // fitted to RAW's medians: of 64 B a READ takes 1.9 µs and a WRITE 1.6 (7.1)
			ClientMops: 75, NodeMops: 75, PCIeGbps: gen3x16, // Rowan 6.2
			AtomicMops: 50, AtomicWordMops: 3, DeviceMops: 75, DeviceWordMops: 9, // RCuckoo 2.2, of the next NIC
			// A series to one node takes 200 ns and more. The rest is fitted to a core that does
			// 1030 thousand GETs a second, of two nodes each (7.2).
			Doorbell: 200, Verb: 50, Poll: 200,
			Cores: 8, HyperSpeed: 0.6, // our estimate: both threads of a core poll, and gain a fifth by sharing it
			NodeCores: 8, ServiceTime: 2 * time.Microsecond,
		},
	},
}

const (
	// infinibandHeader is a packet's local and transport headers and its two checksums (InfiniBand
	// architecture specification, volume 1, chapter 5): 8 + 12 + 4 + 2.
	infinibandHeader = 26
	// roceHeader is a packet's of RoCE v2 (annex A17): preamble and gap, Ethernet, IPv4 and UDP,
	// transport header, two checksums: 20 + 14 + 20 + 8 + 12 + 4 + 4.
	roceHeader = 82
	// gen3x16 is what PCIe 3.0 carries on 16 lanes of 8 Gbaud, 128 of 130 bits, with 24 B beside
	// each 256 B.
	gen3x16 = 115
)
