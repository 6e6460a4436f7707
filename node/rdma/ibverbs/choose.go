package ibverbs

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// Choice names a device, a port and an address of it. What is left out is chosen: a port that is
// up and has the address by which the other machines reach this one, if there is such a port.
type Choice struct {
	Device string // such as mlx5_0; "": any
	Port   int    // from 1; 0: any that is up
	GID    int    // index of the address plus 1, since devices count from 0; 0: the best
}

// ErrNoDevice is wrapped when there is no device that could be used.
var ErrNoDevice = errors.New("no RDMA device to use")

// Port is what a device's port is.
type Port struct {
	Device   string
	Port     int
	State    string // "ACTIVE", "DOWN", and so on
	Ethernet bool   // RoCE; else InfiniBand
	LID      uint16
	MTU      int // bytes
	GIDs     []GID
}

// GID is an address of a port.
type GID struct {
	Index int
	Type  string // "RoCE v2", "RoCE v1" or "IB"
	Addr  [16]byte
}

// IP is the address as an IP address; nil when it is none.
func (g GID) IP() net.IP {
	ip := net.IP(g.Addr[:])
	if ip.IsUnspecified() || g.Type != "RoCE v2" {
		return nil
	}
	return ip
}

// choose chooses a port and an address of it. local is this machine's address towards the pool, or
// nil.
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

// worth is how good an address is for reaching the pool's other machines; more is better.
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

// towards is this machine's address that packets to a node bear; nil when that cannot be told.
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
