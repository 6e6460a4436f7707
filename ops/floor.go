package ops

import (
	"encoding/binary"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
)

// floor issues the bare batches of a replicated store's operations through an Endpoint, with nothing around them:
// slots and objects lie at random places of a scratch pool with as many memory nodes and records.
//
//	Get     a READ of the slot and a READ of the object, as on a cache hit
//	Update  1. a WRITE of the object to each replica, READs of the slot and of the old object's log entry
//	        2. a CAS of each backup slot
//	        3. a WRITE of the log's commit mark to each replica
//	        4. a CAS of the primary slot
//
// These are FUSEE's (section 4.3); a store that needs fewer can come out below 1.
type floor struct {
	fabric   rdma.Fabric
	ep       rdma.Endpoint
	records  uint64
	replicas int
	object   int // bytes
}

const (
	slotBytes    = 8
	entryBytes   = 48 // the head of an object, which leads to its log entry
	commitBytes  = 9
	floorTimeout = time.Second
)

// newFloor makes the scratch pool.
func newFloor(addr string, nodes, replicas int, records uint64, object int) (*floor, error) {
	f := &floor{records: records, replicas: replicas, object: object}
	g := fabrics.Geometry{Nodes: nodes, Memory: records * uint64(slotBytes+object), Clients: 1}
	var err error
	if f.fabric, err = fabrics.Create(addr, g, commitAll); err != nil {
		return nil, err
	}
	if f.ep, err = f.fabric.Open("floor"); err != nil {
		f.fabric.Close()
		return nil, err
	}
	if err := f.fill(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func commitAll(f rdma.Fabric) error {
	for n := range f.Nodes() {
		if err := node.Commit(f, n, 0, f.Size()); err != nil {
			return err
		}
	}
	return nil
}

// fill writes every object once: a page that was never written reads as one shared page of zeros, from the cache.
func (f *floor) fill() error {
	for i := range f.records {
		b := f.ep.Batch()
		p := b.Alloc(f.object)
		for r := range f.replicas {
			b.Write(f.objectAt(i, r), p)
			b.FetchAdd(f.slotAt(i, r), 1)
		}
		if err := f.do(b); err != nil {
			return err
		}
	}
	return nil
}

func (f *floor) close() {
	f.ep.Close()
	f.fabric.Close()
}

// slotAt is where a record's slot lies on one replica, and objectAt its object: primaries take turns on the nodes.
func (f *floor) slotAt(record uint64, replica int) rdma.Addr {
	return rdma.At(f.nodeOf(record, replica), record*slotBytes)
}

func (f *floor) objectAt(record uint64, replica int) rdma.Addr {
	return rdma.At(f.nodeOf(record, replica), f.records*slotBytes+record*uint64(f.object))
}

func (f *floor) nodeOf(record uint64, replica int) int {
	return int((record + uint64(replica)) % uint64(f.fabric.Nodes()))
}

func (f *floor) do(b *rdma.Batch) error {
	err := rdma.Do(f.ep, b, floorTimeout)
	b.Release()
	return err
}

func (f *floor) get(record uint64) error {
	b := f.ep.Batch()
	b.Read(f.slotAt(record, 0), slotBytes)
	b.Read(f.objectAt(record, 0), f.object)
	return f.do(b)
}

func (f *floor) update(record uint64, value []byte) error {
	b := f.ep.Batch()
	p := b.Alloc(f.object)
	copy(p, value)
	for r := range f.replicas {
		b.Write(f.objectAt(record, r), p)
	}
	slot := b.Read(f.slotAt(record, 0), slotBytes)
	b.Read(f.objectAt(record, 0), min(entryBytes, f.object))
	if err := rdma.Do(f.ep, b, floorTimeout); err != nil {
		b.Release()
		return err
	}
	old := binary.LittleEndian.Uint64(slot.Buf)
	b.Release()
	if f.replicas > 1 {
		b = f.ep.Batch()
		for r := 1; r < f.replicas; r++ {
			b.CompareSwap(f.slotAt(record, r), old, old+1)
		}
		if err := f.do(b); err != nil {
			return err
		}
	}
	b = f.ep.Batch()
	p = b.Alloc(commitBytes)
	for r := range f.replicas {
		b.Write(f.objectAt(record, r).Add(uint64(f.object-16)), p)
	}
	if err := f.do(b); err != nil {
		return err
	}
	b = f.ep.Batch()
	b.CompareSwap(f.slotAt(record, 0), old, old+1)
	return f.do(b)
}
