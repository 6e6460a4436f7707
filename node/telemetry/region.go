package telemetry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Records is how many processes have a record in a pool unless its maker says otherwise.
const Records = 64

// RecordBytes is the size of a record: two halves.
const RecordBytes = 2 * halfBytes

const (
	halfBytes  = 8 << 10
	places     = 1024 // processes that are counted; the first ones have a record
	placeBytes = 16   // a claim, and a beat
	slots      = 256  // events that are kept
	slotBytes  = 512

	regionMagic   = 0x316c6574_766b7266 // "frkvtel1"
	regionVersion = 1
	regionHead    = 4096 // the header, and the head of the ring of events
	regionFixed   = 32   // bytes of the header that its checksum covers
	ringHeadAt    = 64   // a line of its own, since only atomics change it
	placesAt      = regionHead
	recordsAt     = placesAt + places*placeBytes
)

// What callers branch on.
var (
	// ErrNone is wrapped when a pool has no telemetry: an older program made it, or its maker
	// wanted none.
	ErrNone = errors.New("the pool has no telemetry: it was made without, or by an older farkv")
	// ErrVersion is wrapped when a pool's telemetry has a layout that this program does not know.
	ErrVersion = errors.New("the pool's telemetry has another layout")
)

// A Region is where a pool keeps the telemetry of its processes: behind the store's memory on every
// node.
//
//	header         32 bytes, written once: magic, version, records, places, slots, checksum
//	head           8 bytes at 64: how many events were written, changed by FAA only
//	places         1024 of 16 bytes: a claim, the life of a process, changed by CAS only, and a
//	               beat, the process's wall clock when it published last
//	records        of the first places, 16 KiB each: two halves, written in turn
//	ring           256 events of 512 bytes
//
// Nodes know nothing of each other's regions: a process writes its record on two nodes, wherever
// there is a place, and readers merge what they find. So a node may die, be cut off or be replaced
// at any time.
//
// A region is memory that all of a pool's processes may write, and it is read as such: what is
// found there is bounded, checked and cleaned, and at worst left out.
type Region struct {
	base    uint64 // on each node
	nodes   int
	records int
}

// Bytes returns the size of a region with so many records, in whole pages; 0 for none.
func Bytes(records int) uint64 {
	if records < 1 {
		return 0
	}
	const page = 4096
	n := uint64(recordsAt) + uint64(records)*RecordBytes + slots*slotBytes
	return (n + page - 1) / page * page
}

// MaxRecords bounds the records of a region.
const MaxRecords = places

// At returns the region of a pool of the given number of nodes that begins at base on each of them.
// Most callers want Find.
func At(base uint64, nodes, records int) *Region { return &Region{base, nodes, records} }

// Format writes the header of the region on each node of a new pool, which has only zeros in its
// memory, and backs the region if the fabric asks for it. It does nothing if the pool's geometry
// has no telemetry.
func Format(f rdma.Fabric, records int) error {
	g, ok := f.(rdma.Geometer)
	if !ok || g.Geometry().Telemetry == 0 {
		return nil
	}
	if records < 1 || records > MaxRecords || Bytes(records) != g.Geometry().Telemetry {
		return fmt.Errorf("format telemetry: %d records in %d bytes: want 1 to %d, and %d bytes: %w", records,
			g.Geometry().Telemetry, MaxRecords, Bytes(records), rdma.ErrAccess)
	}
	for n := range f.Nodes() {
		if err := node.Commit(f, n, f.Size(), Bytes(records)); err != nil {
			return fmt.Errorf("format telemetry: %w", err)
		}
	}
	ep, err := f.Open("format")
	if err != nil {
		return fmt.Errorf("format telemetry: %w", err)
	}
	return errors.Join(At(f.Size(), f.Nodes(), records).Format(ep), ep.Close())
}

// Format writes the region's header to each node.
func (r *Region) Format(ep rdma.Endpoint) error {
	b := ep.Batch()
	defer b.Release()
	p := b.Alloc(regionFixed + 8)
	le := binary.LittleEndian
	le.PutUint64(p, regionMagic)
	for i, v := range []int{regionVersion, r.records, places, slots, RecordBytes, slotBytes} {
		le.PutUint32(p[8+4*i:], uint32(v))
	}
	le.PutUint64(p[regionFixed:], xxhash.Sum64(p[:regionFixed]))
	for n := range r.nodes {
		b.Write(rdma.At(n, r.base), p)
	}
	if err := rdma.Do(ep, b, findTimeout); err != nil {
		return fmt.Errorf("format telemetry: %w", err)
	}
	return nil
}

// findTimeout bounds the READ of a header: a node that takes longer is down.
const findTimeout = 5 * time.Second

// StepFind is the READ of the region's header.
const StepFind rdma.Step = "find telemetry"

// Find reads where the region of a pool of the given number of nodes is. Errors wrap ErrNone,
// ErrVersion, or what node.ReadHeader returns.
func Find(ep rdma.Endpoint, nodes int) (*Region, error) {
	h, err := node.ReadHeader(ep, nodes)
	if err != nil {
		return nil, fmt.Errorf("find telemetry: %w", err)
	}
	return FindBehind(ep, h)
}

// FindBehind is Find for callers that have read the pool's header.
func FindBehind(ep rdma.Endpoint, h node.Header) (*Region, error) {
	if h.Telemetry == 0 {
		return nil, ErrNone
	}
	var last error
	for n := range h.Nodes {
		b := ep.Batch()
		op := b.Read(rdma.At(n, h.Size), regionFixed+8)
		if last = rdma.Do(ep, b.As(StepFind), findTimeout); last == nil {
			r, err := decodeRegion(op.Buf, h)
			b.Release()
			return r, err
		}
		b.Release()
		if !errors.Is(last, rdma.ErrNodeDown) && !errors.Is(last, rdma.ErrTimeout) {
			break
		}
	}
	return nil, fmt.Errorf("find telemetry: %w", last)
}

// decodeRegion reads the header of a region. It trusts none of it.
func decodeRegion(p []byte, h node.Header) (*Region, error) {
	le := binary.LittleEndian
	if le.Uint64(p) != regionMagic || le.Uint64(p[regionFixed:]) != xxhash.Sum64(p[:regionFixed]) {
		return nil, fmt.Errorf("%w, or is damaged", ErrVersion)
	}
	if v := le.Uint32(p[8:]); v != regionVersion {
		return nil, fmt.Errorf("%w: version %d, and this program knows version %d", ErrVersion, v, regionVersion)
	}
	for i, want := range []uint32{places, slots, RecordBytes, slotBytes} {
		if le.Uint32(p[16+4*i:]) != want {
			return nil, fmt.Errorf("%w, or is damaged", ErrVersion)
		}
	}
	records := int(le.Uint32(p[12:]))
	if records < 1 || records > MaxRecords || Bytes(records) > uint64(h.Telemetry) {
		return nil, fmt.Errorf("%w: %d records in %d bytes", ErrVersion, records, h.Telemetry)
	}
	return At(h.Size, h.Nodes, records), nil
}

// Records returns how many processes have room for a record.
func (r *Region) Records() int { return r.records }

func (r *Region) place(node, i int) rdma.Addr {
	return rdma.At(node, r.base+placesAt+uint64(i)*placeBytes)
}

func (r *Region) record(node, i int) rdma.Addr {
	return rdma.At(node, r.base+recordsAt+uint64(i)*RecordBytes)
}

func (r *Region) ringHead(node int) rdma.Addr { return rdma.At(node, r.base+ringHeadAt) }

func (r *Region) slot(node, i int) rdma.Addr {
	return rdma.At(node, r.base+recordsAt+uint64(r.records)*RecordBytes+uint64(i)*slotBytes)
}

// serving returns the nodes that a view has, in order.
func (r *Region) serving(v *rdma.View) (nodes []int) {
	for n := range min(r.nodes, len(v.Members)) {
		if !v.Members[n].Gone {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// attend bounds the wait for the nodes that are read or written: one that takes longer is left out,
// this time.
const attend = 2 * time.Second

// onEach posts what fill adds for each of the nodes, waits for all of them together for some time,
// and calls take with each batch that was executed. Those of nodes that fail, or do not answer in
// time, are given to fail, which may be nil.
func onEach(ep rdma.Endpoint, within time.Duration, step rdma.Step, nodes []int, fill func(b *rdma.Batch, node int),
	take func(b *rdma.Batch, node int),
	fail func(node int, err error)) {
	batches := make([]*rdma.Batch, len(nodes))
	errs := make([]error, len(nodes))
	for i, n := range nodes {
		batches[i] = ep.Batch()
		fill(batches[i], n)
		errs[i] = ep.Post(batches[i].As(step))
	}
	until := ep.Now() + within
	for i, n := range nodes {
		b, err := batches[i], errs[i]
		if err == nil && b.Len() > 0 {
			err = ep.Wait(b, rdma.All, max(until-ep.Now(), 1))
		}
		if err == nil {
			err = b.Err()
		}
		if err == nil {
			take(b, n)
		} else if fail != nil {
			fail(n, err)
		}
		b.Release() // what is in flight yet keeps it
	}
}
