package sim

import (
	"fmt"
	"strings"
	"time"
)

// Profile is a cluster that somebody measured a store on.
type Profile struct {
	Name, Doc string
	Source    string // where its figures are from
	// Nodes and ComputeNodes are the machines that there were, and ClientsPerNode the clients of a compute node.
	Nodes, ComputeNodes, ClientsPerNode int
	Hardware                            Hardware
}

// Options returns a pool of that cluster's machines, with so many memory nodes; 0: as many as it has. More nodes, or
// clients, than it has are more machines of the same kind. It measures performance: legal reordering is on, tearing and
// flying verbs are off.
func (p *Profile) Options(seed uint64, nodes int) Options {
	if nodes <= 0 {
		nodes = p.Nodes
	}
	h := p.Hardware
	return Options{Seed: seed, Nodes: nodes, Clients: 1 << 15, Hardware: &h, Reorder: true, MaxEvents: 1 << 50}
}

// Profiles returns all profiles, by name.
func Profiles() []Profile { return append([]Profile(nil), profiles[:]...) }

// LookupProfile returns the profile of a name.
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

const ns = time.Nanosecond

var profiles = [...]Profile{
	{
		Name:   "fusee-testbed",
		Doc:    "CloudLab APT: 5 memory and 17 compute nodes, 8-core Xeon E5-2450, ConnectX-3 56 Gbit/s InfiniBand",
		Source: "FUSEE 6.1",
		Nodes:  5, ComputeNodes: 17, ClientsPerNode: 8,
		Hardware: Hardware{
			ClientsPerNode: 8, LinkGbps: 54.3, Header: 26, MTU: 4096, Propagation: 550 * ns,
			ClientMops: 26, NodeMops: 26, PCIe: 300 * ns, PCIeGbps: 50,
			AtomicMops: 2.7, AtomicWordMops: 2.4, DeviceMops: 2.7, DeviceWordMops: 2.4,
			Doorbell: 300 * ns, Verb: 50 * ns, Poll: 150 * ns,
			NodeCores: 8, ServiceTime: 5 * time.Microsecond, CallLatency: 20 * time.Microsecond,
		},
	},
	{
		Name:   "rcuckoo-testbed",
		Doc:    "1 memory and 8 compute nodes, two Xeon E5-2650, ConnectX-5 100 Gbit/s",
		Source: "RCuckoo 2.2, 5.2",
		Nodes:  1, ComputeNodes: 8, ClientsPerNode: 40,
		Hardware: Hardware{
			ClientsPerNode: 40, ComputeNodes: 8, LinkGbps: 100, Header: 82, MTU: 4096, Propagation: 600 * ns,
			ClientMops: 75, NodeMops: 75, PCIe: 300 * ns, PCIeGbps: 100,
			AtomicMops: 50, AtomicWordMops: 3, DeviceMops: 75, DeviceWordMops: 9,
			Doorbell: 200 * ns, Verb: 40 * ns, Poll: 100 * ns, NodeCores: 1, ServiceTime: 2 * time.Microsecond,
		},
	},
	{
		Name:   "rowan-testbed",
		Doc:    "6 servers with 3 Optane DIMMs each and 8 client machines, Xeon Gold 6240M, ConnectX-5 100 Gbit/s InfiniBand",
		Source: "Rowan 2.2, 6.1, 6.2",
		Nodes:  6, ComputeNodes: 8, ClientsPerNode: 36,
		Hardware: Hardware{
			ClientsPerNode: 36, ComputeNodes: 8, LinkGbps: 100, Header: 26, MTU: 4096, Propagation: 600 * ns,
			ClientMops: 75, NodeMops: 75, PCIe: 300 * ns, PCIeGbps: 100,
			AtomicMops: 50, AtomicWordMops: 3, DeviceMops: 75, DeviceWordMops: 9,
			Doorbell: 200 * ns, Verb: 40 * ns, Poll: 100 * ns, NodeCores: 24, ServiceTime: 1 * time.Microsecond,
		},
	},
	{
		Name:   "rtx-testbed",
		Doc:    "1 memory and 5 compute nodes, two 12-core Xeon E5-2650 v4, ConnectX-4 100 Gbit/s InfiniBand",
		Source: "rTX 6",
		Nodes:  1, ComputeNodes: 5, ClientsPerNode: 24,
		Hardware: Hardware{
			ClientsPerNode: 24, ComputeNodes: 5, LinkGbps: 100, Header: 26, MTU: 4096, Propagation: 600 * ns,
			ClientMops: 75, NodeMops: 75, PCIe: 300 * ns, PCIeGbps: 100,
			AtomicMops: 50, AtomicWordMops: 3, DeviceMops: 75, DeviceWordMops: 9,
			Doorbell: 200 * ns, Verb: 40 * ns, Poll: 100 * ns, NodeCores: 1, ServiceTime: 2 * time.Microsecond,
		},
	},
	{
		Name:   "swarm-testbed",
		Doc:    "4 memory nodes with ConnectX-4 and 4 compute nodes with ConnectX-6, Xeon Gold 6244, 100 Gbit/s InfiniBand",
		Source: "SWARM 7, Table 1",
		Nodes:  4, ComputeNodes: 4, ClientsPerNode: 16,
		Hardware: Hardware{
			ClientsPerNode: 16, ComputeNodes: 4, LinkGbps: 100, Header: 26, MTU: 4096, Propagation: 600 * ns,
			ClientMops: 75, NodeMops: 75, PCIe: 300 * ns, PCIeGbps: 100,
			AtomicMops: 50, AtomicWordMops: 3, DeviceMops: 75, DeviceWordMops: 9,
			Doorbell: 200 * ns, Verb: 40 * ns, Poll: 100 * ns, NodeCores: 8, ServiceTime: 2 * time.Microsecond,
		},
	},
}
