//go:build ibverbs && linux

package ibverbs

/*
#cgo LDFLAGS: -libverbs
#cgo noescape fk_post
#cgo nocallback fk_post
#cgo noescape fk_poll
#cgo nocallback fk_poll
#cgo noescape fk_receive
#cgo nocallback fk_receive
#include <errno.h>
#include <stdlib.h>
#include "verbs.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// Built reports whether this program was built with libibverbs.
const Built = true

// Requests, groups and completions are shared with C as they are.
var (
	_ = [1]byte{}[unsafe.Sizeof(request{})-C.sizeof_struct_fk_request]
	_ = [1]byte{}[unsafe.Sizeof(group{})-C.sizeof_struct_fk_group]
	_ = [1]byte{}[unsafe.Sizeof(completion{})-C.sizeof_struct_fk_completion]
)

// device is an adapter of libibverbs. It is closed by the last user: see users.
type device struct {
	c *C.struct_ibv_context
	// All memory and queue pairs are of one protection domain, so that a key is good on each of
	// them.
	pd   *C.struct_ibv_pd
	port Port
	// gid is this end's address in each connection.
	gid GID
	lim limits
	mtu C.int // of the port, as libibverbs counts
	// in and out are bounded by mostRdAtomic.
	in  uint8 // READs and atomics in flight that a queue pair takes
	out uint8 // and makes

	// users is 1 for the opener, and 1 for each memory, queue and queue pair.
	users atomic.Int32 // what was made of it, and itself: the last one closes it
}

// wantInline is how many bytes of a WRITE are to travel in the work request: a cache line or two
// costs the device less so than to fetch them. probeInline halves it until the device takes it.
const wantInline = 220

// softVendor is the vendor of soft-RoCE. Its queue pairs come to stand still at a fence now and
// then, as seen with Linux 6.1: without an error, whatever is posted behind it.
const softVendor = 0xffffff

// mostRdAtomic bounds READs and atomics in flight; devices that can do more gain nothing by it.
const mostRdAtomic = 16

// openAdapter opens the device that is chosen from all that this machine has: see choose. The error
// wraps ErrNoDevice where there is none to choose.
func openAdapter(c Choice, local net.IP) (adapter, error) {
	list, err := listDevices()
	if err != nil {
		return nil, err
	}
	defer list.free()
	var ports []Port
	var closed []error // devices that this user may not open matter only if no other one will do
	for _, d := range list.all {
		p, err := portsOf(d)
		if err != nil {
			closed = append(closed, err)
		}
		ports = append(ports, p...)
	}
	port, gid, err := choose(ports, c, local)
	if err != nil {
		return nil, errors.Join(append([]error{err}, closed...)...)
	}
	for _, d := range list.all {
		if C.GoString(C.ibv_get_device_name(d)) == port.Device {
			return openDevice(d, port, gid)
		}
	}
	return nil, fmt.Errorf("%w: %s is gone", ErrNoDevice, port.Device)
}

// openDevice opens a device for one of its ports. What was opened is closed if there is an error.
func openDevice(from *C.struct_ibv_device, port Port, gid GID) (adapter, error) {
	d := &device{port: port, gid: gid}
	d.users.Store(1)
	var err error
	if d.c, err = openContext(from); err != nil {
		return nil, err
	}
	if err := d.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("device %s: %w", port.Device, err), d.close())
	}
	return d, nil
}

// openContext opens a device, for its caller to close.
func openContext(from *C.struct_ibv_device) (*C.struct_ibv_context, error) {
	c, err := C.ibv_open_device(from)
	if c == nil {
		name := C.GoString(C.ibv_get_device_name(from))
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w (hint: may this user open /dev/infiniband/uverbs*?)", err)
		}
		return nil, fmt.Errorf("open device %s: %w", name, err)
	}
	return c, nil
}

// open asks what the device can do, and makes the protection domain. A device without atomics is
// refused with rdma.ErrNotSupported. Atomics that are atomic with those of the same device only
// will do, since whatever changes a word goes through the node's device.
func (d *device) open() (err error) {
	var attr C.struct_ibv_device_attr
	if no := C.ibv_query_device(d.c, &attr); no != 0 {
		return fmt.Errorf("ask what it can do: %w", syscall.Errno(no))
	}
	if attr.atomic_cap == C.IBV_ATOMIC_NONE {
		return fmt.Errorf("it has no atomics, which every store needs: %w", rdma.ErrNotSupported)
	}
	var p C.struct_fk_port
	if no := C.fk_port_query(d.c, C.int(d.port.Port), &p); no != 0 {
		return fmt.Errorf("ask for port %d: %w", d.port.Port, syscall.Errno(no))
	}
	d.mtu = p.mtu
	d.in, d.out = uint8(min(attr.max_qp_rd_atom, mostRdAtomic)), uint8(min(attr.max_qp_init_rd_atom, mostRdAtomic))
	d.lim = limits{inline: wantInline, depth: int(attr.max_qp_wr), room: int(attr.max_cqe), pairs: int(attr.max_qp),
		slots: int(attr.max_srq_wr), mtu: uint8(p.mtu), fences: attr.vendor_id != softVendor}
	if d.pd, err = C.ibv_alloc_pd(d.c); d.pd == nil {
		return fmt.Errorf("make a protection domain: %w", err)
	}
	return d.probeInline()
}

// probeInline finds out how many bytes may be inline: there is no other way than to try. A device
// that makes no queue pair with none, either, is of no use: that error counts.
func (d *device) probeInline() error {
	q, err := d.completions(1)
	if err != nil {
		return err
	}
	for ; ; d.lim.inline /= 2 {
		p, err := q.pair(1, accessNone)
		if err == nil {
			return errors.Join(p.close(), q.close())
		}
		if d.lim.inline == 0 {
			return errors.Join(err, q.close())
		}
	}
}

func (d *device) limits() limits { return d.lim }

func (d *device) at() (device string, port int) { return d.port.Device, d.port.Port }

// close gives up the device. The device goes when nothing made of it is left, such as endpoints
// that were not closed. Each thing that was made calls it as well, behind its own end.
func (d *device) close() error {
	if d.users.Add(-1) > 0 {
		return nil
	}
	var err error
	if d.pd != nil {
		if no := C.ibv_dealloc_pd(d.pd); no != 0 {
			err = fmt.Errorf("device %s: end the protection domain: %w", d.port.Device, syscall.Errno(no))
		}
	}
	if no := C.ibv_close_device(d.c); no != 0 {
		err = errors.Join(err, fmt.Errorf("close device %s: %w", d.port.Device, syscall.Errno(int(no))))
	}
	return err
}

// mr is memory that a device may use.
type mr struct {
	d  *device
	mr *C.struct_ibv_mr
	// C has no reference that the collector knows of. It is unpinned behind the end of the
	// registration.
	pin runtime.Pinner // the garbage collector lets it be, even if this is all that refers to it
}

// registered holds the memory that devices may write to now. An endpoint that its user forgets to
// close must not be all that keeps the memory: the device goes on, and the collector would have it.
// Memory of such an endpoint stays for the life of the process.
var registered sync.Map

// register pins the memory before the device has it. The node's own mapping is none of the heap's:
// pinning it does nothing.
func (d *device) register(base unsafe.Pointer, size uint64, remote bool) (memory, error) {
	m := &mr{d: d}
	m.pin.Pin(base)
	far := C.int(0)
	if remote {
		far = 1
	}
	var err error
	if m.mr, err = C.fk_register(d.pd, C.uintptr_t(uintptr(base)), C.uint64_t(size), far); m.mr == nil {
		m.pin.Unpin()
		return nil, noMemory(d.port.Device, size, err)
	}
	d.users.Add(1)
	registered.Store(m, nil)
	return m, nil
}

func (m *mr) keys() (local, remote uint32) { return uint32(m.mr.lkey), uint32(m.mr.rkey) }

// close ends the registration and then lets the memory go, in this order. If the device refuses,
// the memory stays pinned: lost rather than written to in another use.
func (m *mr) close() error {
	if no := C.ibv_dereg_mr(m.mr); no != 0 {
		return fmt.Errorf("device %s: unregister memory: %w", m.d.port.Device, syscall.Errno(no))
	}
	m.pin.Unpin()
	registered.Delete(m)
	return m.d.close()
}

// cq is a completion queue with a channel that tells of completions, which the runtime waits for as
// for a connection.
type cq struct {
	d  *device
	cq *C.struct_ibv_cq
	// channel is of the queue that made it; those beside it have the same.
	channel *C.struct_ibv_comp_channel
	// file is another descriptor of the channel, which the runtime polls.
	file *os.File // the channel
	raw  syscall.RawConn
	// Those that were closed are taken out when the queue is armed next.
	others []*cq // of the same channel
	// It is a field so that a wait allocates nothing.
	taken func(uintptr) bool // takes the channel's events; made once
	own   bool               // the channel is its own
}

// completions makes a queue with a channel of its own. What was made is closed if there is an
// error.
func (d *device) completions(room int) (completions, error) {
	q := &cq{d: d, own: true}
	d.users.Add(1)
	if err := q.open(room); err != nil {
		return nil, errors.Join(fmt.Errorf("device %s: make a completion queue for %d: %w", d.port.Device, room, err),
			q.close())
	}
	return q, nil
}

// open makes the channel and then the queue. The channel does not block, so that a wait takes what
// is there and leaves the sleep to the runtime: a worker that sleeps takes no thread.
// SetReadDeadline is tried once here: it fails where the runtime cannot poll the descriptor.
func (q *cq) open(room int) (err error) {
	if q.channel, err = C.ibv_create_comp_channel(q.d.c); q.channel == nil {
		return err
	}
	fd := int(q.channel.fd)
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) // libibverbs closes the other one
	if err != nil {
		return err
	}
	q.file = os.NewFile(uintptr(own), "completions")
	if q.raw, err = q.file.SyscallConn(); err != nil {
		return err
	}
	q.taken = func(uintptr) bool { return C.fk_event(q.channel) > 0 }
	if err := q.file.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("its channel cannot be waited for: %w", err)
	}
	return q.make(room)
}

// make makes the queue, which has its events in the channel.
func (q *cq) make(room int) (err error) {
	if q.cq, err = C.ibv_create_cq(q.d.c, C.int(room), nil, q.channel, 0); q.cq == nil {
		return err
	}
	return nil
}

// beside makes a queue whose events come by q's channel, which q alone closes.
func (q *cq) beside(room int) (completions, error) {
	o := &cq{d: q.d, channel: q.channel}
	q.d.users.Add(1)
	if err := o.make(room); err != nil {
		err = fmt.Errorf("device %s: make a completion queue for %d: %w", q.d.port.Device, room, err)
		return nil, errors.Join(err, o.close())
	}
	q.others = append(q.others, o)
	return o, nil
}

// close ends the queue, and then the channel if it is q's own. libibverbs waits until all events
// that were taken are acknowledged, which fk_event does as it takes them. A queue beside another
// one is found to be closed by its cq, which is nil.
func (q *cq) close() error {
	var errs []error
	if q.cq != nil {
		if no := C.ibv_destroy_cq(q.cq); no != 0 {
			errs = append(errs, fmt.Errorf("end a completion queue: %w", syscall.Errno(no)))
		}
		q.cq = nil
	}
	if q.file != nil {
		errs = append(errs, q.file.Close())
	}
	if q.channel != nil && q.own {
		if no := C.ibv_destroy_comp_channel(q.channel); no != 0 {
			errs = append(errs, fmt.Errorf("end a completion channel: %w", syscall.Errno(no)))
		}
	}
	return errors.Join(append(errs, q.d.close())...)
}

// post is one call into C. Neither slice is empty. C keeps no pointer to either.
func (q *cq) post(groups []group, requests []request) {
	C.fk_post((*C.struct_fk_group)(unsafe.Pointer(&groups[0])), C.int(len(groups)),
		(*C.struct_fk_request)(unsafe.Pointer(&requests[0])))
}

// poll is one call into C, the spinning included. A queue that the device has given up ends the
// process: what its completions would have told cannot be known.
func (q *cq) poll(into []completion, spin time.Duration) int {
	n := C.fk_poll(q.cq, (*C.struct_fk_completion)(unsafe.Pointer(&into[0])), C.int(len(into)), C.int64_t(spin))
	if n < 0 {
		panic(fmt.Sprintf("ibverbs: device %s does not tell what is complete", q.d.port.Device))
	}
	return int(n)
}

// arm asks for one event for the next completion of each queue of the channel, whatever it is of.
func (q *cq) arm() error {
	if no := C.ibv_req_notify_cq(q.cq, 0); no != 0 {
		return fmt.Errorf("device %s: ask for events: %w", q.d.port.Device, syscall.Errno(no))
	}
	q.others = slices.DeleteFunc(q.others, func(o *cq) bool { return o.cq == nil })
	for _, o := range q.others {
		if err := o.arm(); err != nil {
			return err
		}
	}
	return nil
}

// await takes all events that are there, and sleeps only if there are none. A deadline is no error.
// An event of an earlier arm, the completion of which was polled, ends it at once.
func (q *cq) await(until time.Duration) error {
	q.file.SetReadDeadline(time.Now().Add(until - realtime.Now()))
	err := q.raw.Read(q.taken)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// qp is a queue pair. Its completions go to q.
type qp struct {
	q  *cq
	qp *C.struct_ibv_qp
	// psn is what this end's packets are numbered from; the other end learns it from the card.
	psn uint32
	// close may be called twice, and destroys it once.
	once sync.Once
}

// pair makes a queue pair without a receive queue. The end that posts lets the other one do nothing
// with its memory, and the end that lets it posts nothing: so only the first has room for inline
// bytes.
func (q *cq) pair(depth int, may access) (pair, error) {
	inline := q.d.lim.inline
	if may != accessNone {
		inline = 0 // the end that posts nothing
	}
	return q.newPair(nil, depth, inline, may)
}

// newPair makes a queue pair in the state INIT: it takes no packet before connect. Its messages
// come into buffers of a receive queue, or of none. The error wraps rdma.ErrFull.
func (q *cq) newPair(into *C.struct_ibv_srq, depth, inline int, may access) (pair, error) {
	most := C.uint32_t(inline)
	p, err := C.fk_pair(q.d.pd, q.cq, into, C.int(depth), &most, C.int(q.d.port.Port), C.int(may))
	if p == nil {
		return nil, fmt.Errorf("device %s: make a queue pair (it has %d at most): %w: %w", q.d.port.Device,
			q.d.lim.pairs, rdma.ErrFull, err)
	}
	q.d.users.Add(1)
	return &qp{q: q, qp: p, psn: rand.Uint32() & (1<<24 - 1)}, nil
}

// handle is C's pointer, as a number. It may be another one's once the queue pair was closed.
func (p *qp) handle() uintptr { return uintptr(unsafe.Pointer(p.qp)) }

// card has no base and no key: the caller adds what its kind of connection needs.
func (p *qp) card() card {
	d := p.q.d
	return card{
		qpn: uint32(p.qp.qp_num), psn: p.psn, lid: d.port.LID, gid: d.gid.Addr, ethernet: d.port.Ethernet,
		mtu: uint8(d.mtu), rdAtomic: d.in,
	}
}

// connect takes it to the states in which it receives, and sends. Of the two ends' MTUs it takes
// the lesser. READs and atomics in flight are as many as the other end takes and this device makes.
func (p *qp) connect(remote card) error {
	d := p.q.d
	if remote.ethernet != d.port.Ethernet {
		return fmt.Errorf("device %s is on another kind of network than the other end's: %w",
			d.port.Device, rdma.ErrNotSupported)
	}
	c := C.struct_fk_card{
		qpn: C.uint32_t(remote.qpn), psn: C.uint32_t(remote.psn), lid: C.uint16_t(remote.lid),
		mtu: C.uint8_t(min(remote.mtu, uint8(d.mtu))), rd_atomic: C.uint8_t(max(1, min(remote.rdAtomic, d.out))),
	}
	for i, b := range remote.gid {
		c.gid[i] = C.uint8_t(b)
	}
	if remote.ethernet {
		c.ethernet = 1
	}
	if no := C.fk_connect(p.qp, C.int(d.port.Port), C.int(d.gid.Index), C.uint32_t(p.psn),
		C.uint8_t(d.in), &c); no != 0 {
		return fmt.Errorf("device %s: connect to the device at %v: %w", d.port.Device, net.IP(remote.gid[:]),
			syscall.Errno(no))
	}
	return nil
}

// stop has it in the state of error, in which it takes no packet. It may still be closed.
func (p *qp) stop() error {
	if no := C.fk_stop(p.qp); no != 0 {
		return fmt.Errorf("device %s: stop a queue pair: %w", p.q.d.port.Device, syscall.Errno(no))
	}
	return nil
}

// close returns when the device has done with it: what follows, such as the reuse of memory or the
// answer to a fence, relies on that.
func (p *qp) close() (err error) {
	p.once.Do(func() {
		if no := C.fk_end(p.qp); no != 0 {
			err = fmt.Errorf("device %s: end a queue pair: %w", p.q.d.port.Device, syscall.Errno(no))
			return
		}
		err = p.q.d.close()
	})
	return err
}

// srq is a shared receive queue. It outlives the queue pairs that share it.
type srq struct {
	d   *device
	srq *C.struct_ibv_srq
}

// receives makes a queue of buffers of one piece each. The error wraps rdma.ErrFull.
func (d *device) receives(room int) (receives, error) {
	s, err := C.fk_receives(d.pd, C.int(room))
	if s == nil {
		return nil, fmt.Errorf("device %s: make a receive queue for %d: %w: %w", d.port.Device, room, rdma.ErrFull, err)
	}
	d.users.Add(1)
	return &srq{d, s}, nil
}

// pair makes an end that only receives: it has one place for requests, which stays empty.
func (s *srq) pair(q completions, may access) (pair, error) {
	return q.(*cq).newPair(s.srq, 1, 0, may)
}

// post may be called for registered memory alone; the device has the buffer until its completion.
func (s *srq) post(id uint64, buffer []byte, key uint32) error {
	at := C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(buffer))))
	if no := C.fk_receive(s.srq, C.uint64_t(id), at, C.uint32_t(len(buffer)), C.uint32_t(key)); no != 0 {
		return fmt.Errorf("device %s: post a buffer: %w", s.d.port.Device, syscall.Errno(no))
	}
	return nil
}

// close fails while a queue pair shares it.
func (s *srq) close() error {
	if no := C.ibv_destroy_srq(s.srq); no != 0 {
		return fmt.Errorf("device %s: end a receive queue: %w", s.d.port.Device, syscall.Errno(no))
	}
	return s.d.close()
}
