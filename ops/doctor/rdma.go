package doctor

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"github.com/farkv/farkv/ops/format"
	"net/netip"
	"slices"
	"strings"
)

const class = "sys/class/infiniband"

// What bounds the looks at sysfs, whatever is in it.
const (
	mostDevices = 64
	mostPorts   = 16
	mostGIDs    = 256
	shownGIDs   = 8 // of a port: a host may have many addresses
)

// rdma looks for a device with a port that is up, its driver, and the way of programs to it.
func (d *Examination) rdma(_ context.Context, t *Topic) {
	names, err := d.list(class)
	if err != nil {
		t.missing("devices", class+" cannot be read: "+err.Error(), "")
	}
	cards, wrong := d.Verbs()
	up := false
	for _, name := range names[:min(len(names), mostDevices)] {
		usable := d.device(t, name)
		for _, c := range cards {
			if c.Device == name {
				usable = capabilities(t, &c) && usable
			}
		}
		up = up || usable
	}
	switch {
	case err != nil:
	case len(names) == 0:
		t.missing("devices", "no RDMA device",
			"an RNIC and its driver; to try without: modprobe rdma_rxe && rdma link add rxe0 type rxe "+
				"netdev "+d.netdev())
	case !up:
		t.missing("active port", "no device has a port that can be used", "")
	}
	d.modules(t, len(names) > 0)
	d.uverbs(t, len(names) > 0)
	libibverbs(t, len(names) > 0, len(cards), wrong)
}

// netdev is a network device that soft-RoCE could run over.
func (d *Examination) netdev() string {
	for _, name := range d.there("sys/class/net") {
		if name != "lo" && d.line("sys/class/net/"+name+"/operstate") == "up" {
			return name
		}
	}
	return "eth0"
}

// device tells of one device, and whether it has a port that can be used.
func (d *Examination) device(t *Topic, name string) (up bool) {
	at := class + "/" + name
	kind := d.line(at + "/node_type")
	_, kind, _ = strings.Cut(kind, ": ")
	parts := []string{kindOf(kind)}
	if driver := d.link(at + "/device/driver"); driver != "" {
		parts = append(parts, driver)
	} else if over := d.line(at + "/parent"); over != "" {
		parts[0] = "software over " + over + ": verbs run in the kernel, for tests"
	}
	if v := d.line(at + "/fw_ver"); v != "" {
		parts = append(parts, "firmware "+v)
	}
	if v := d.line(at + "/hca_type"); v != "" {
		parts = append(parts, v)
	}
	if n := d.number(at + "/device/numa_node"); n >= 0 { // -1: it is near to none
		parts = append(parts, fmt.Sprintf("NUMA node %d", n))
	}
	found := strings.Join(parts, ", ")
	switch kind {
	case "":
		t.warn(name, "cannot be read", "")
		return false
	case "RNIC":
		t.warn(name, found, "farkv speaks InfiniBand and RoCE v2: use another device")
		return false
	}
	t.ok(name, found)
	ports := d.there(at + "/ports")
	for _, port := range ports[:min(len(ports), mostPorts)] {
		up = d.port(t, name, port) || up
	}
	if len(ports) == 0 {
		t.warn(name, "has no port", "")
	}
	return up
}

func kindOf(nodeType string) string {
	switch nodeType {
	case "CA":
		return "channel adapter"
	case "RNIC":
		return "iWARP adapter"
	}
	return nodeType
}

// port tells of one port, and whether it can be used: it is active, and has an address that verbs
// can go to.
func (d *Examination) port(t *Topic, device, port string) bool {
	at, what := class+"/"+device+"/ports/"+port, device+" port "+port
	_, state, _ := strings.Cut(d.line(at+"/state"), ": ")
	_, physical, _ := strings.Cut(d.line(at+"/phys_state"), ": ")
	layer := d.line(at + "/link_layer")
	if state == "" || layer == "" {
		t.warn(what, "cannot be read", "")
		return false
	}
	gids := d.gids(at)
	found := strings.Join(nonEmpty(state, layer, d.line(at+"/rate")), ", ")
	if state != "ACTIVE" {
		t.warn(what, strings.Join(nonEmpty(found, physical), ", "), wake(layer, state, d.over(device, gids)))
		return false
	}
	t.ok(what, found)
	usable := d.addresses(t, what, layer, d.over(device, gids), gids)
	if layer == "Ethernet" {
		d.mtu(t, gids)
	}
	d.counters(t, what, at)
	return usable
}

func nonEmpty(all ...string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return s == "" })
}

// wake tells how a port becomes active.
func wake(layer, state, netdev string) string {
	switch {
	case layer == "InfiniBand" && (state == "INIT" || state == "ARMED"):
		return "no subnet manager has set it up: run one in the fabric, such as 'systemctl start opensm'"
	case layer == "InfiniBand":
		return "plug its cable in; 'ibstat' and 'iblinkinfo' tell more"
	}
	return "ip link set " + netdev + " up, and plug its cable in"
}

// over is the network device that a RoCE port belongs to, or what stands for it where that is not
// known.
func (d *Examination) over(device string, gids []gid) string {
	for _, g := range gids {
		if g.netdev != "" {
			return g.netdev
		}
	}
	if name := d.line(class + "/" + device + "/parent"); name != "" {
		return name
	}
	if names := d.there(class + "/" + device + "/device/net"); len(names) == 1 {
		return names[0]
	}
	return "NETDEV"
}

// gid is an address of a port.
type gid struct {
	index  string
	addr   netip.Addr
	kind   string // "RoCE v2", or "IB/RoCE v1"
	netdev string
}

// gids reads a port's table of addresses. Entries that are free read as zeros, and have no type.
func (d *Examination) gids(port string) (all []gid) {
	names := d.there(port + "/gids")
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }) // numbers
	for _, index := range names[:min(len(names), mostGIDs)] {
		raw, err := hex.DecodeString(strings.ReplaceAll(d.line(port+"/gids/"+index), ":", ""))
		addr, ok := netip.AddrFromSlice(raw)
		if err != nil || !ok || addr.IsUnspecified() {
			continue
		}
		netdev := d.line(port + "/gid_attrs/ndevs/" + index)
		if strings.ContainsAny(netdev, "/ ") {
			netdev = "" // none has such a name
		}
		all = append(all, gid{index, addr.Unmap(), d.line(port + "/gid_attrs/types/" + index), netdev})
	}
	return all
}

// addresses tells of a port's GIDs, and whether verbs can go to one of them: they do not to those
// of RoCE v1.
func (d *Examination) addresses(t *Topic, what, layer, netdev string, gids []gid) (usable bool) {
	n := 0
	for _, g := range gids {
		if layer == "InfiniBand" {
			g.kind = layer
		} else if g.kind != "RoCE v2" {
			continue
		}
		if n++; n <= shownGIDs {
			t.ok("GID "+g.index, strings.Join(nonEmpty(g.kind, g.addr.String(), g.netdev), ", "))
		}
	}
	if n > shownGIDs {
		t.ok("GIDs", format.Plural(n-shownGIDs, "more", "more"))
	}
	if usable = n > 0; !usable && layer == "InfiniBand" {
		t.warn(what, "has no GID", "")
	} else if !usable {
		t.warn(what, "has no GID of RoCE v2",
			"ip addr add ADDRESS/BITS dev "+netdev+": each address of the network device makes one")
	}
	return usable
}

// roceHeaders is the most that the kernel takes off a network device's MTU for RoCE: GRH, UDP, BTH,
// XRC and atomic headers and the checksum.
const roceHeaders = 40 + 8 + 12 + 4 + 28 + 4

// pathMTU returns the largest payload of a packet that fits a network device's MTU: 256, 512 ...
// 4096; 0: none does.
func pathMTU(netdev int64) int64 {
	for mtu := int64(4096); mtu >= 256; mtu /= 2 {
		if mtu+roceHeaders <= netdev {
			return mtu
		}
	}
	return 0
}

// mtu compares the network device's MTU with what verbs could use.
func (d *Examination) mtu(t *Topic, gids []gid) {
	seen := map[string]bool{}
	for _, g := range gids {
		n := d.number("sys/class/net/" + g.netdev + "/mtu")
		if g.netdev == "" || seen[g.netdev] || n < 0 {
			continue
		}
		seen[g.netdev] = true
		found := fmt.Sprintf("up to %d, since %s has %d", pathMTU(n), g.netdev, n)
		if pathMTU(n) < 4096 {
			t.warn("path MTU", found,
				fmt.Sprintf("ip link set %s mtu 9000 (%d is enough for 4096), at all machines, and jumbo frames on "+
					"the switch", g.netdev, 4096+roceHeaders))
		} else {
			t.ok("path MTU", found)
		}
	}
}

// counters reports whether the hardware counts.
func (d *Examination) counters(t *Topic, what, port string) {
	names := d.there(port + "/hw_counters")
	names = slices.DeleteFunc(names, func(name string) bool { return name == "lifespan" }) // how often they are read
	if len(names) == 0 {
		t.warn("counters", "none in hw_counters of "+what+": packets, retries and timeouts are not told", "")
		return
	}
	t.ok("counters", format.Plural(len(names), "hardware counter", "hardware counters"))
}

const mellanox = "0x15b3"

// modules tells of drivers.
func (d *Examination) modules(t *Topic, devices bool) {
	if found, ok := d.module("ib_uverbs"); ok {
		t.ok("ib_uverbs", found)
	} else {
		t.missing("ib_uverbs", found,
			"modprobe ib_uverbs, and once and for all: echo ib_uverbs > /etc/modules-load.d/rdma.conf")
	}
	cards := d.cards()
	for _, driver := range []string{"mlx5_ib", "mlx4_ib"} {
		if found, ok := d.module(driver); ok {
			t.ok(driver, found)
			cards = nil
		}
	}
	if len(cards) > 0 {
		t.warn("mlx5_ib", "not loaded, and there are Mellanox cards: "+strings.Join(cards, ", "),
			"modprobe mlx5_ib (or mlx4_ib up to ConnectX-3)")
	}
	if found, ok := d.module("rdma_rxe"); ok {
		t.ok("rdma_rxe", found)
	} else if !devices {
		t.warn("rdma_rxe", found, "")
	}
}

// cards returns the PCI addresses of Mellanox network controllers.
func (d *Examination) cards() (found []string) {
	const bus = "sys/bus/pci/devices"
	for _, name := range d.there(bus) {
		if d.line(bus+"/"+name+"/vendor") == mellanox && strings.HasPrefix(d.line(bus+"/"+name+"/class"), "0x02") {
			found = append(found, name)
		}
	}
	return found
}

// module reports whether a kernel module is there, and if not whether it could be.
func (d *Examination) module(name string) (found string, ok bool) {
	if d.has("sys/module/" + name) {
		return "loaded", true
	}
	release := d.line("proc/sys/kernel/osrelease")
	folder := "lib/modules/" + release
	listed := func(list string) bool {
		text, _ := d.text(folder + "/" + list)
		return strings.Contains(text, "/"+name+".ko")
	}
	switch {
	case release == "" || !d.has(folder+"/modules.dep"):
		return "not loaded", false
	case listed("modules.builtin"):
		return "a part of the kernel", true
	case listed("modules.dep"):
		return "not loaded; the kernel's modules have it", false
	}
	return "the kernel " + release + " does not have it: install a full one, such as linux-image-amd64, not a cloud " +
		"one", false
}

// uverbs reports whether programs may open the devices.
func (d *Examination) uverbs(t *Topic, devices bool) {
	const folder = "dev/infiniband"
	found := 0
	for _, name := range d.there(folder) {
		if !strings.HasPrefix(name, "uverbs") {
			continue
		}
		found++
		at := "/" + folder + "/" + name
		st, err := d.stat(folder + "/" + name)
		switch {
		case err != nil:
			t.missing(at, err.Error(), "")
		case st.Perm()&0o006 == 0o006:
			t.ok(at, "every user may open it")
		case d.UID == 0:
			t.ok(at, "root may open it, and others may not: "+st.Perm().String())
		default:
			t.missing(at, "this user may not open it, unless by a group: "+st.Perm().String(),
				`rdma-core's udev rule opens it: KERNEL=="uverbs*", MODE="0666"; or run as root`)
		}
	}
	if found == 0 && devices {
		t.missing("/dev/infiniband", "no uverbs device",
			"modprobe ib_uverbs; in a container: --device /dev/infiniband --cap-add IPC_LOCK")
	}
}
