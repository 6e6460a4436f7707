//go:build ibverbs && linux

package ibverbs

import (
	"C"
	"cmp"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"unsafe"
)

// devices are what libibverbs finds on this machine.
type devices struct {
	list **C.struct_ibv_device
	all  []*C.struct_ibv_device
}

func listDevices() (*devices, error) {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		return nil, fmt.Errorf("%w: %w (hint: is the module ib_uverbs loaded?)", ErrNoDevice, err)
	}
	return &devices{list, unsafe.Slice(list, int(n))}, nil
}

func (d *devices) free() { C.ibv_free_device_list(d.list) }

// mostGIDs bounds the addresses of a device that are looked at; RoCE has a few for each address of
// its interface.
const mostGIDs = 1024

// portsOf tells of a device's ports.
func portsOf(from *C.struct_ibv_device) ([]Port, error) {
	c, err := openContext(from)
	if err != nil {
		return nil, err
	}
	defer C.ibv_close_device(c)
	return ports(c, C.GoString(C.ibv_get_device_name(from)))
}

func ports(c *C.struct_ibv_context, name string) (all []Port, err error) {
	var attr C.struct_ibv_device_attr
	if no := C.ibv_query_device(c, &attr); no != 0 {
		return nil, fmt.Errorf("ask device %s what it can do: %w", name, syscall.Errno(no))
	}
	gids := make([]C.struct_ibv_gid_entry, mostGIDs)
	n := int(C.fk_gids(c, &gids[0], mostGIDs))
	if n < 0 {
		return nil, fmt.Errorf("ask device %s for its GIDs: %w", name, syscall.Errno(-n))
	}
	for i := 1; i <= int(attr.phys_port_cnt); i++ {
		var p C.struct_ibv_port_attr
		if no := C.fk_query_port(c, C.int(i), &p); no != 0 {
			return nil, fmt.Errorf("ask device %s for port %d: %w", name, i, syscall.Errno(no))
		}
		port := Port{
			Device: name, Port: i,
			State:    strings.ToUpper(strings.TrimPrefix(C.GoString(C.ibv_port_state_str(p.state)), "PORT_")),
			Ethernet: p.link_layer == C.IBV_LINK_LAYER_ETHERNET, LID: uint16(p.lid), MTU: 128 << p.active_mtu,
		}
		for _, g := range gids[:n] {
			if int(g.port_num) == i {
				port.GIDs = append(port.GIDs, GID{int(g.gid_index), gidType(g.gid_type), [16]byte(g.gid)})
			}
		}
		all = append(all, port)
	}
	return all, nil
}

func gidType(t C.uint32_t) string {
	switch t {
	case C.IBV_GID_TYPE_ROCE_V1:
		return "RoCE v1"
	case C.IBV_GID_TYPE_ROCE_V2:
		return "RoCE v2"
	}
	return "IB"
}

func probe() ([]Info, error) {
	list, err := listDevices()
	if err != nil {
		return nil, err
	}
	defer list.free()
	var all []Info
	var errs []error // of devices that do not tell
	for _, d := range list.all {
		i, err := infoOf(d)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, i)
	}
	if len(list.all) == 0 {
		return nil, fmt.Errorf("%w: there is none", ErrNoDevice)
	}
	return all, errors.Join(errs...)
}

func infoOf(from *C.struct_ibv_device) (Info, error) {
	name := C.GoString(C.ibv_get_device_name(from))
	c, err := openContext(from)
	if err != nil {
		return Info{}, err
	}
	defer C.ibv_close_device(c)
	var attr C.struct_ibv_device_attr
	if no := C.ibv_query_device(c, &attr); no != 0 {
		return Info{}, fmt.Errorf("ask device %s what it can do: %w", name, syscall.Errno(no))
	}
	i := Info{
		Device: name, Firmware: C.GoString(&attr.fw_ver[0]), Vendor: uint32(attr.vendor_id),
		QueuePair: int(attr.max_qp), Requests: int(attr.max_qp_wr), RdAtomic: int(attr.max_qp_rd_atom),
		Regions: int(attr.max_mr), RegionMax: uint64(attr.max_mr_size), DeviceMemory: uint64(C.fk_device_memory(c)),
		SharedReceive: int(attr.max_srq), Atomics: map[C.enum_ibv_atomic_cap]string{C.IBV_ATOMIC_HCA: "HCA",
			C.IBV_ATOMIC_GLOB: "global"}[attr.atomic_cap],
	}
	i.Atomics = cmp.Or(i.Atomics, "none")
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	i.MultiPacket = C.GoString(C.fk_multi_packet(c, cname))
	i.SharedPackets = C.GoString(C.fk_shared_packets(from, cname))
	i.Ports, err = ports(c, name)
	return i, err
}
