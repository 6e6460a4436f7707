package ibverbs

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/rdma/control"
)

func gid(index int, kind, ip string) GID {
	g := GID{Index: index, Type: kind}
	copy(g.Addr[:], net.ParseIP(ip).To16())
	return g
}

func roce(device string, port int, state string, gids ...GID) Port {
	return Port{Device: device, Port: port, State: state, Ethernet: true, MTU: 1024, GIDs: gids}
}

const v1, v2, ib = "RoCE v1", "RoCE v2", "IB"

func TestChoose(t *testing.T) {
	first := roce("mlx5_0", 1, "ACTIVE", gid(0, v1, "fe80::1"), gid(1, v2, "fe80::1"), gid(2, v1, "10.0.0.1"),
		gid(3, v2, "10.0.0.1"), gid(4, v2, "fd00::1"))
	second := roce("mlx5_1", 1, "ACTIVE", gid(0, v1, "fe80::2"), gid(1, v2, "fe80::2"), gid(2, v2, "10.1.0.1"))
	infini := Port{Device: "mlx5_2", Port: 1, State: "ACTIVE", LID: 7, MTU: 4096,
		GIDs: []GID{gid(0, ib, "fe80::3"), gid(1, ib, "fe80::4")}}
	down := roce("mlx5_3", 1, "DOWN", gid(0, v2, "10.2.0.1"))
	old := roce("mlx4_0", 1, "ACTIVE", gid(0, v1, "fe80::5"))
	six := roce("mlx5_4", 2, "ACTIVE", gid(0, v2, "fe80::6"), gid(1, v2, "fd00::6"))
	empty := roce("mlx5_5", 1, "ACTIVE", gid(0, v2, "::"), gid(1, v2, "10.5.0.1"))
	for what, c := range map[string]struct {
		ports  []Port
		choice Choice
		local  string
		device string
		index  int
	}{
		"the only one":                         {[]Port{second}, Choice{}, "", "mlx5_1", 2},
		"by this machine's address":            {[]Port{first, second}, Choice{}, "10.1.0.1", "mlx5_1", 2},
		"by one of version 6":                  {[]Port{second, first}, Choice{}, "fd00::1", "mlx5_0", 4},
		"by a link's own":                      {[]Port{first, six}, Choice{}, "fe80::6", "mlx5_4", 0},
		"the first, where none reaches":        {[]Port{first, second}, Choice{}, "192.0.2.1", "mlx5_0", 3},
		"of version 4 before 6":                {[]Port{six, second}, Choice{}, "", "mlx5_1", 2},
		"a routed address before a link's":     {[]Port{six}, Choice{}, "", "mlx5_4", 1},
		"what is up":                           {[]Port{down, second}, Choice{}, "10.2.0.1", "mlx5_1", 2},
		"an address before none":               {[]Port{empty}, Choice{}, "", "mlx5_5", 1},
		"InfiniBand":                           {[]Port{infini}, Choice{}, "10.0.0.1", "mlx5_2", 0},
		"InfiniBand before RoCE v1":            {[]Port{old, infini}, Choice{}, "", "mlx5_2", 0},
		"an IP address before InfiniBand":      {[]Port{infini, first}, Choice{}, "", "mlx5_0", 3},
		"RoCE v1, where there is nothing else": {[]Port{old}, Choice{}, "", "mlx4_0", 0},
		"as told, a device": {[]Port{first, second}, Choice{Device: "mlx5_1"},
			"10.0.0.1", "mlx5_1", 2},
		"as told, a port":            {[]Port{first, six}, Choice{Port: 2}, "10.0.0.1", "mlx5_4", 1},
		"as told, a GID":             {[]Port{first}, Choice{GID: 2}, "10.0.0.1", "mlx5_0", 1},
		"as told, GID 0 of a device": {[]Port{first, second}, Choice{Device: "mlx5_1", GID: 1}, "", "mlx5_1", 0},
	} {
		port, g, err := choose(c.ports, c.choice, net.ParseIP(c.local))
		if err != nil || port.Device != c.device || g.Index != c.index {
			t.Errorf("%s: %s, GID %d (%v), want %s, GID %d", what, port.Device, g.Index, err, c.device, c.index)
		}
	}
	for text, c := range map[string]struct {
		ports  []Port
		choice Choice
	}{
		"no RDMA device to use: there is none (hint: 'farkv doctor' says what this machine has)": {nil, Choice{}},
		"mlx5_3 port 1 is DOWN":                       {[]Port{down}, Choice{}},
		"mlx5_3 port 1 is DOWN;":                      {[]Port{down, roce("mlx5_6", 1, "INIT")}, Choice{}},
		"mlx5_0 port 1 has no such GID":               {[]Port{first}, Choice{GID: 99}},
		`there is no device "mlx5_9"`:                 {[]Port{first}, Choice{Device: "mlx5_9"}},
		`there is no device "mlx5_0" with port 3`:     {[]Port{first}, Choice{Device: "mlx5_0", Port: 3}},
		"mlx5_3 port 1 is DOWN (hint: 'farkv doctor'": {[]Port{first, down}, Choice{Device: "mlx5_3"}},
	} {
		if p, _, err := choose(c.ports, c.choice, nil); !errors.Is(err, ErrNoDevice) ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%s port %d is chosen (%v), want %q", p.Device, p.Port, err, text)
		}
	}
}

func TestTowards(t *testing.T) {
	if ip := towards("127.0.0.1:9"); !ip.IsLoopback() {
		t.Errorf("packets to this machine bear %v", ip)
	}
	if ip := towards("no address"); ip != nil {
		t.Errorf("packets to nowhere bear %v", ip)
	}
}

// TestNotBuilt asks a program without libibverbs for what it does not have: it says how to build
// it.
func TestNotBuilt(t *testing.T) {
	if Built {
		t.Skip("this program is built with libibverbs: run without the tag")
	}
	at := control.Options{Addresses: []string{"127.0.0.1:9"}}
	_, probed := Probe()
	_, node := OpenDevice(Choice{}, "127.0.0.1:7")
	_, opened := Open(at, Options{})
	_, created := Create(at, control.Geometry{}, Options{}, nil)
	for what, err := range map[string]error{"probe": probed, "node": node, "open": opened, "create": created} {
		if !errors.Is(err, ErrNotBuilt) || !strings.Contains(err.Error(), "go build -tags ibverbs") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
