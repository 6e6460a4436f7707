package ibverbs

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// Nodes and clients choose by the same rules. A machine may have several devices on several
// networks, of which only one leads to the pool's machines. The pool's TCP traffic shows which: the
// port that has the address which that traffic uses is taken before all others.

// Choice names a device, a port and an address of it. What is left out is chosen: a port that is
// up and has the address by which the other machines reach this one, if there is such a port.
type Choice struct {
	Device string // such as mlx5_0; "": any
	Port   int    // from 1; 0: any that is up
	GID    int    // index of the address plus 1, since devices count from 0; 0: the best
}

// ErrNoDevice is wrapped when there is no device that could be used.
var ErrNoDevice = errors.New("no RDMA device to use")

// Port is what a device's port is. It is as libibverbs told it when the machine's devices were
// listed.
type Port struct {
	Device   string
	Port     int
	State    string // "ACTIVE", "DOWN", and so on
	Ethernet bool   // RoCE; else InfiniBand
	// The subnet manager gives it; it is 0 on Ethernet.
	LID uint16
	MTU int // bytes
	// GIDs are in the order of the port's table. An entry may bear no address: see IP.
	GIDs []GID
}

// GID is an address of a port. RoCE has one of each type for each IP address of the port's
// interface.
type GID struct {
	// Index is the place in the port's table, which names the address to the device: see
	// fk_connect.
	Index int
	Type  string // "RoCE v2", "RoCE v1" or "IB"
	Addr  [16]byte
}

// IP is the address as an IP address; nil when it is none. An address of version 4 is mapped into
// one of version 6, as net.IP has it. RoCE v1 has none: its packets bear no IP header.
func (g GID) IP() net.IP {
	ip := net.IP(g.Addr[:])
	if ip.IsUnspecified() || g.Type != "RoCE v2" {
		return nil
	}
	return ip
}

// choose chooses a port and an address of it. local is this machine's address towards the pool, or
// nil. The best one by worth is taken, and the first of these in the order of ports and of their
// tables. The error wraps ErrNoDevice, and says why each port that could be meant will not do.
func choose(ports []Port, c Choice, local net.IP) (Port, GID, error) {
	var why []string
	var best Port
	var gid GID
	points := -1
	for _, p := range ports {
		if c.Device != "" && c.Device != p.Device || c.Port != 0 && c.Port != p.Port {
			continue
		}
		if p.State != "ACTIVE" {
			why = append(why, fmt.Sprintf("%s port %d is %s", p.Device, p.Port, p.State))
			continue
		}
		found := false
		for _, g := range p.GIDs {
			if c.GID != 0 && c.GID != g.Index+1 {
				continue
			}
			found = true
			if n := worth(p, g, local); n > points {
				best, gid, points = p, g, n
			}
		}
		if !found {
			why = append(why, fmt.Sprintf("%s port %d has no such GID", p.Device, p.Port))
		}
	}
	if points >= 0 {
		return best, gid, nil
	}
	hint := "'farkv doctor' says what this machine has"
	switch {
	case len(ports) == 0:
		return Port{}, GID{}, fmt.Errorf("%w: there is none (hint: %s)", ErrNoDevice, hint)
	case len(why) > 0:
		return Port{}, GID{}, fmt.Errorf("%w: %s (hint: %s)", ErrNoDevice, strings.Join(why, "; "), hint)
	}
	what := fmt.Sprintf("port %d", c.Port)
	if c.Device != "" {
		what = strings.TrimSuffix(fmt.Sprintf("device %q with port %d", c.Device, c.Port), " with port 0")
	}
	return Port{}, GID{}, fmt.Errorf("%w: there is no %s (hint: %s)", ErrNoDevice, what, hint)
}

// worth is how good an address is for reaching the pool's other machines; more is better. A link's
// own address reaches no other link, and is the last of those of RoCE v2. On InfiniBand the first
// of a table is the port's own, which is always there.
func worth(p Port, g GID, local net.IP) int {
	ip := g.IP()
	switch {
	case ip != nil && local != nil && ip.Equal(local):
		return 5
	case ip != nil && ip.To4() != nil:
		return 4
	case ip != nil && !ip.IsLinkLocalUnicast():
		return 3
	case ip != nil:
		return 2
	case !p.Ethernet && g.Index == 0:
		return 2
	case !p.Ethernet:
		return 1
	}
	return 0 // RoCE v1 crosses no router, and soft-RoCE does not know it
}

// towards is this machine's address that packets to a node bear; nil when that cannot be told. The
// kernel chooses the address by its routes when the socket is connected.
func towards(node string) net.IP {
	c, err := net.Dial("udp", node) // sends nothing
	if err != nil {
		return nil
	}
	defer c.Close()
	a, ok := c.LocalAddr().(*net.UDPAddr)
	if !ok {
		return nil
	}
	return a.IP
}
