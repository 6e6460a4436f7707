//go:build ibverbs && linux

package ibverbs

/*
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <infiniband/verbs.h>
#include <infiniband/mlx5dv.h>

// Whether raw packet queues take several packets an entry. libmlx5 is loaded when it is asked for,
// and not linked: so the program starts where there is none. It stays loaded. The text is a
// constant.
static const char *fk_multi_packet(struct ibv_context *c, const char *name)
{
	struct mlx5dv_context attr = { .comp_mask = MLX5DV_CONTEXT_MASK_STRIDING_RQ };
	int (*query)(struct ibv_context *, struct mlx5dv_context *);
	void *lib;

	if (strncmp(name, "mlx5", 4) != 0)
		return "no";
	lib = dlopen("libmlx5.so.1", RTLD_NOW);
	if (!lib)
		return "not known: libmlx5 is not installed";
	query = (int (*)(struct ibv_context *, struct mlx5dv_context *))dlsym(lib, "mlx5dv_query_device");
	if (!query || query(c, &attr) != 0)
		return "not known: the device does not say";
	return attr.comp_mask & MLX5DV_CONTEXT_MASK_STRIDING_RQ && attr.striding_rq_caps.supported_qpts ? "yes" : "no";
}

// The device's general capabilities, by its own commands (DEVX): among them the bit that queues of
// messages take many an entry. This has never run: there was no such device. The command and its
// answer are big-endian, with a head of 16 bytes in the answer; byte 0 of it is its status. The bit
// is counted from the first one of what follows, the highest of a byte first.
static const char *fk_shared_packets(struct ibv_device *d, const char *name)
{
	enum { query_hca_cap = 0x0100, general_now = 1, cyclic_striding = 0x233, answer = 16 };
	uint8_t in[16] = { query_hca_cap >> 8, 0, 0, 0, 0, 0, 0, general_now }, out[answer + 4096] = { 0 };
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_context *(*open)(struct ibv_device *, struct mlx5dv_context_attr *);
	int (*ask)(struct ibv_context *, const void *, size_t, void *, size_t);
	struct ibv_context *c;
	void *lib;
	int wrong;

	if (strncmp(name, "mlx5", 4) != 0)
		return "no";
	lib = dlopen("libmlx5.so.1", RTLD_NOW);
	if (!lib)
		return "not known: libmlx5 is not installed";
	open = (struct ibv_context *(*)(struct ibv_device *, struct mlx5dv_context_attr *))dlsym(lib, "mlx5dv_open_device");
	ask = (int (*)(struct ibv_context *, const void *, size_t, void *, size_t))dlsym(lib, "mlx5dv_devx_general_cmd");
	if (!open || !ask || !(c = open(d, &attr)))
		return "not known: the device does not take DEVX commands";
	wrong = ask(c, in, sizeof in, out, sizeof out);
	ibv_close_device(c);
	if (wrong || out[0])
		return "not known: the device does not say";
	return out[answer + cyclic_striding / 8] & 0x80 >> cyclic_striding % 8 ? "yes" : "no";
}

// Bytes of memory on the device itself; 0 where the question is not understood.
static uint64_t fk_device_memory(struct ibv_context *c)
{
	struct ibv_device_attr_ex attr;

	memset(&attr, 0, sizeof attr);
	return ibv_query_device_ex(c, NULL, &attr) == 0 ? attr.max_dm_size : 0;
}

// These two are inline functions and macros of libibverbs, which cgo does not see.
static ssize_t fk_gids(struct ibv_context *c, struct ibv_gid_entry *into, size_t most)
{
	return ibv_query_gid_table(c, into, most, 0);
}

static int fk_query_port(struct ibv_context *c, int port, struct ibv_port_attr *into) {
	return ibv_query_port(c, port, into);
}
*/
import "C"

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"unsafe"
)

// devices are what libibverbs finds on this machine. It holds them until free. A device that was
// opened meanwhile stays open behind that.
type devices struct {
	list **C.struct_ibv_device
	all  []*C.struct_ibv_device
}

// listDevices lists what there is now. The error wraps ErrNoDevice. The caller frees the list.
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
// its interface. Those beyond are not seen, and not chosen.
const mostGIDs = 1024

// portsOf tells of a device's ports. It opens the device for that, and closes it. A device that
// this user may not open is an error.
func portsOf(from *C.struct_ibv_device) ([]Port, error) {
	c, err := openContext(from)
	if err != nil {
		return nil, err
	}
	defer C.ibv_close_device(c)
	return ports(c, C.GoString(C.ibv_get_device_name(from)))
}

// ports asks an open device for its ports, counted from 1, and their addresses, up or down.
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

// gidType names the type of an address; what is neither version of RoCE is taken for InfiniBand's.
func gidType(t C.uint32_t) string {
	switch t {
	case C.IBV_GID_TYPE_ROCE_V1:
		return "RoCE v1"
	case C.IBV_GID_TYPE_ROCE_V2:
		return "RoCE v2"
	}
	return "IB"
}

// probe is Probe. Devices that do not tell are left out, and in the error.
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

// infoOf opens a device, asks it for all that Info has, and closes it. What a device does not know
// is its zero value, or a text that says so. MaskedAtomics is never set: libibverbs posts none.
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
