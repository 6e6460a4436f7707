package fabrics

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/farkv/farkv/node/cluster/consul"
	"github.com/farkv/farkv/node/cluster/consul/consultest"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/ibverbs"
	"github.com/farkv/farkv/node/rdma/memnode"
)

// host is where the nodes of rdma: pools listen, and with it the device that they use.
var host = flag.String("rdma", "", "make rdma: pools, too, over the RDMA device with this IP address")

// Without libibverbs an address says in a line how to build with it, and so does a pool that turns
// out to be of that kind.
func TestNotBuilt(t *testing.T) {
	if ibverbs.Built {
		t.Skip("this program was built with libibverbs")
	}
	_, err := Parse("rdma:10.0.0.1:7070")
	_, open := openOver(ibverbs.Name, control.Options{}, DeviceChoice{})
	_, create := createOver(ibverbs.Name, control.Options{}, Geometry{}, nil)
	_, device := OpenDevice(ibverbs.Name, DeviceChoice{}, "127.0.0.1:0")
	for _, err := range []error{err, open, create, device} {
		if !errors.Is(err, ErrNotBuilt) || !strings.Contains(err.Error(), "go build -tags ibverbs") ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%v", err)
		}
	}
	if !errors.Is(err, ErrAddress) {
		t.Errorf("%v", err)
	}
}

func TestOtherFabrics(t *testing.T) {
	_, open := openOver("pigeon", control.Options{}, DeviceChoice{})
	_, create := createOver("pigeon", control.Options{}, Geometry{}, nil)
	for _, err := range []error{open, create} {
		if !errors.Is(err, rdma.ErrNotSupported) || !strings.Contains(err.Error(), "pigeon") {
			t.Errorf("%v", err)
		}
	}
}

func TestDeviceChoice(t *testing.T) {
	for _, c := range []struct {
		flags, environment DeviceChoice
		want               ibverbs.Choice
		says               string
	}{
		{},
		{environment: DeviceChoice{"mlx5_1", "2", "0"}, want: ibverbs.Choice{Device: "mlx5_1", Port: 2, GID: 1}},
		{DeviceChoice{"rxe0", "1", "3"}, DeviceChoice{"mlx5_1", "x", "x"},
			ibverbs.Choice{Device: "rxe0", Port: 1, GID: 4}, ""},
		{DeviceChoice{Device: "rxe0"}, DeviceChoice{"mlx5_1", "2", ""}, ibverbs.Choice{Device: "rxe0", Port: 2}, ""},
		{flags: DeviceChoice{Port: "0"}, says: `--port "0": want a number from 1`},
		{flags: DeviceChoice{Port: "-1"}, says: `--port "-1"`},
		{flags: DeviceChoice{GID: "-1"}, says: `--gid "-1": want a number from 0`},
		{flags: DeviceChoice{GID: "70000"}, says: `--gid "70000"`},
		{environment: DeviceChoice{Port: "one"}, says: `$FARKV_RDMA_PORT "one"`},
		{environment: DeviceChoice{GID: "fe80::1"}, says: `$FARKV_RDMA_GID "fe80::1"`},
	} {
		t.Setenv(EnvDevice, c.environment.Device)
		t.Setenv(EnvPort, c.environment.Port)
		t.Setenv(EnvGID, c.environment.GID)
		got, err := c.flags.parse()
		if c.says == "" && (err != nil || got != c.want) {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
		if c.says != "" && (!errors.Is(err, ErrDevice) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// serveRDMA starts memory nodes with devices that end with the test, and returns their address.
func serveRDMA(t *testing.T, n int) Address {
	t.Helper()
	if *host == "" {
		t.Skip("needs an RDMA device: go test -tags ibverbs ./node/fabrics -rdma ADDRESS")
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvToken, token)
	s, err := Security()
	if err != nil {
		t.Fatal(err)
	}
	a := Address{Scheme: ibverbs.Name}
	for range n {
		listen := *host + ":0"
		d, err := OpenDevice(ibverbs.Name, DeviceChoice{}, listen)
		if err != nil {
			t.Fatal(err)
		}
		node, err := Serve(NodeConfig{Listen: listen, Memory: 1 << 20, Security: s, Device: d})
		if err != nil {
			t.Fatal(errors.Join(err, d.Close()))
		}
		t.Cleanup(func() {
			if err := errors.Join(node.Close(), d.Close()); err != nil {
				t.Error(err)
			}
		})
		a.Nodes = append(a.Nodes, node.Addr())
	}
	return a
}

// TestRDMA makes, opens and removes a pool on nodes with devices, by its own address and by that of
// the wrong fabric.
func TestRDMA(t *testing.T) {
	a := serveRDMA(t, 3)
	two := Geometry{Nodes: 2, Memory: 1 << 20, Clients: 4}
	f, err := Create(a.String(), two, write)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	check(t, f)
	if g := f.(rdma.Geometer).Geometry(); g.Nodes != 2 || g.Clients != 4 {
		t.Errorf("its shape is %+v", g)
	}
	if over := f.(rdma.CarrierNamer).Carrier(); over != a.Scheme {
		t.Errorf("its verbs go over %s", over)
	}
	if s, device, port, ok := DeviceOf(f); !ok || s.Requests == 0 || s.Calls() == 0 || device == "" || port < 1 {
		t.Errorf("its device: %+v, %s port %d, %v", s, device, port, ok)
	}
	var other *control.OtherFabric
	if _, err := Open("tcp:" + a.Nodes[1]); !errors.As(err, &other) ||
		!strings.Contains(err.Error(), "open it as rdma:") {
		t.Errorf("opened over TCP: %v", err)
	}
	again, err := Open("rdma:" + a.Nodes[1])
	if err != nil {
		t.Fatal(err)
	}
	check(t, again)
	infos, errs, err := Inspect(t.Context(), a, nil)
	if err != nil || errors.Join(errs...) != nil || infos[2].Fabric != ibverbs.Name {
		t.Errorf("inspected: %+v, %v, %v", infos, errs, err)
	}
	if err := errors.Join(again.Close(), f.Close(), Remove(a.String(), false)); err != nil {
		t.Error(err)
	}
	over := Address{Scheme: "tcp", Nodes: a.Nodes} // nodes with devices serve pools over TCP, too
	if f, err = Create(over.String(), two, write); err != nil {
		t.Fatal(err)
	}
	check(t, f)
	if _, err := Open(a.String()); !errors.As(err, &other) || !strings.Contains(err.Error(), "open it as tcp:") {
		t.Errorf("opened over devices: %v", err)
	}
	if err := errors.Join(f.Close(), Remove(over.String(), false)); err != nil {
		t.Error(err)
	}
}

// device stands for an RDMA device in nodes of which no pool is made.
type device struct{}

func (device) Fabric() string { return ibverbs.Name }

func (device) Register(unsafe.Pointer, uint64) (memnode.Registration, error) {
	return nil, errors.New("there is no such device")
}

// What a pool without a fabric in its address goes over is what its nodes were started for, all of
// them.
func TestStartedFor(t *testing.T) {
	with, without := serve(t, 2, NodeConfig{Device: device{}}), serve(t, 1, NodeConfig{})
	for want, nodes := range map[string][]string{
		ibverbs.Name: with.Nodes, "tcp": append(with.Nodes, without.Nodes...),
	} {
		if got := startedFor(control.Options{Addresses: nodes}); got != want {
			t.Errorf("%d nodes: %s, want %s", len(nodes), got, want)
		}
	}
}

// A pool of Consul's goes over what its maker says, or else what its nodes were started for, and
// its record tells that to a process that opens it.
func TestNamedFabric(t *testing.T) {
	agent := consultest.Start(t, nil)
	with := serve(t, 1, NodeConfig{Device: device{}})
	g := small
	g.Addresses = with.Nodes
	named := "consul:" + agent.Address + "/"
	if _, err := Create(named+"free", g, write); ibverbs.Built == errors.Is(err, ErrNotBuilt) || err == nil {
		t.Errorf("made over a device that there is not: %v", err)
	}
	g.Fabric = "tcp"
	f, err := Create(named+"tcp", g, write)
	if err != nil {
		t.Fatal(err)
	}
	check(t, f)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	a, err := consul.Dial(agent.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	record := func(name string) consul.Record {
		p, err := a.Pool(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.Record()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := record("tcp")
	if r.Fabric != "tcp" {
		t.Errorf("its record says %q", r.Fabric)
	}
	p, err := a.Pool("other")
	if err != nil {
		t.Fatal(err)
	}
	r.Fabric = "pigeon"
	if err := p.Publish(r); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(named + "other"); !errors.Is(err, rdma.ErrNotSupported) ||
		!strings.Contains(err.Error(), "pigeon") {
		t.Errorf("opened over an unknown fabric: %v", err)
	}
	if *host == "" {
		return
	}
	g.Addresses, g.Fabric = serveRDMA(t, 1).Nodes, ""
	if f, err = Create(named+"rdma", g, write); err != nil {
		t.Fatal(err)
	}
	check(t, f)
	again, err := Open(named + "rdma")
	if err != nil {
		t.Fatal(err)
	}
	check(t, again)
	if _, _, _, ok := DeviceOf(again); !ok || record("rdma").Fabric != ibverbs.Name {
		t.Errorf("its record says %q", record("rdma").Fabric)
	}
	if err := errors.Join(again.Close(), f.Close(), Remove(named+"rdma", false)); err != nil {
		t.Error(err)
	}
}
