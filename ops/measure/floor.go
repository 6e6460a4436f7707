package measure

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
)

// posted is one op of a batch that a store posted, without what it carried.
type posted struct {
	rdma.Verb
	fence    bool
	shared   bool // a WRITE of the buffer of the one before
	at       rdma.Addr
	bytes    int
	atomic   [2]uint64 // Expect, Value
	andMasks [2]uint64 // CompareMask, SwapMask
}

// batches are a sequence of batches, in the order in which they were posted.
type batches struct {
	verbs []posted
	ends  []int // of each batch in verbs
}

func (p *batches) reset() { p.verbs, p.ends = p.verbs[:0], p.ends[:0] }

func (p *batches) add(b *rdma.Batch) {
	var written []byte
	for i := range b.Len() {
		op := b.Op(i)
		v := posted{Verb: op.Verb, fence: op.Fence, at: op.Addr, bytes: op.Len(),
			atomic: [2]uint64{op.Expect, op.Value}, andMasks: [2]uint64{op.CompareMask, op.SwapMask}}
		if op.Verb == rdma.Write && len(op.Buf) > 0 {
			v.shared = len(written) == len(op.Buf) && &written[0] == &op.Buf[0]
			written = op.Buf
		}
		p.verbs = append(p.verbs, v)
	}
	p.ends = append(p.ends, len(p.verbs))
}

// recorder is an endpoint that records the batches posted through it, while it has batches to fill.
// Tasks that a store starts have endpoints of their own. What they post is not recorded, because no
// operation waits for it.
type recorder struct {
	rdma.Endpoint
	into *batches // nil: none
}

// Post implements rdma.Queue.
func (r *recorder) Post(b *rdma.Batch) error {
	if r.into != nil {
		r.into.add(b)
	}
	return r.Endpoint.Post(b)
}

// Listen implements rdma.Messenger.
func (r *recorder) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) { return rdma.Listen(r.Endpoint, o) }

// floor posts the recorded batches of a store without the store's code, at the same addresses of a
// copy of the pool. On the copy they do no harm, and caches of the processor are as cold as for the
// store. Its endpoint is a recorder, too, so that both pay for recording.
type floor struct {
	fabric rdma.Fabric
	ep     *recorder
}

const (
	floorTimeout = time.Second
	copyBytes    = 1 << 20 // at a time
)

// newFloor copies the pool. No worker may write to it meanwhile.
func newFloor(addr string, pool rdma.Fabric) (*floor, error) {
	g := fabrics.Geometry{Nodes: pool.Nodes(), Memory: pool.Size(), Clients: 1}
	f := new(floor)
	var err error
	if f.fabric, err = fabrics.Create(addr, g, func(to rdma.Fabric) error { return copyPool(to, pool) }); err != nil {
		return nil, err
	}
	ep, err := f.fabric.Open("floor")
	if err != nil {
		return nil, errors.Join(err, f.fabric.Close())
	}
	f.ep = &recorder{Endpoint: ep}
	return f, nil
}

func (f *floor) close() error { return errors.Join(f.ep.Close(), f.fabric.Close()) }

// copyPool copies the pages of a pool's memory that are not zero.
func copyPool(to, from rdma.Fabric) (err error) {
	src, err := from.Open("floor")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	dst, err := to.Open("floor")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	for n := range from.Nodes() {
		for off := uint64(0); off < from.Size(); off += copyBytes {
			if err := copyPart(to, dst, src, n, off, min(copyBytes, from.Size()-off)); err != nil {
				return fmt.Errorf("copy node %d: %w", n, err)
			}
		}
	}
	return nil
}

var zeros [ops.PageSize]byte

// copyPart copies what lies at off of a node, but for pages that are zero.
func copyPart(to rdma.Fabric, dst, src rdma.Endpoint, n int, off, size uint64) error {
	read := src.Batch()
	defer read.Release()
	got := read.Read(rdma.At(n, off), int(size))
	if err := rdma.Do(src, read, floorTimeout); err != nil {
		return err
	}
	for at := 0; at < len(got.Buf); {
		end := at
		for end < len(got.Buf) && !bytes.Equal(got.Buf[end:][:pageAt(got.Buf, end)], zeros[:pageAt(got.Buf, end)]) {
			end += pageAt(got.Buf, end)
		}
		if end == at {
			at += pageAt(got.Buf, at)
			continue
		}
		if err := node.Commit(to, n, off+uint64(at), uint64(end-at)); err != nil {
			return err
		}
		b := dst.Batch()
		b.WriteCopy(rdma.At(n, off+uint64(at)), got.Buf[at:end])
		err := rdma.Do(dst, b, floorTimeout)
		b.Release()
		if err != nil {
			return err
		}
		at = end
	}
	return nil
}

// pageAt returns how many bytes of p's page at an offset there are.
func pageAt(p []byte, at int) int { return min(len(zeros), len(p)-at) }

// replay posts batches, each when the one before is complete.
func (f *floor) replay(p *batches) error {
	from := 0
	for _, end := range p.ends {
		b := f.ep.Batch()
		var written []byte
		for i := range p.verbs[from:end] {
			written = p.verbs[from+i].post(b, written)
		}
		err := rdma.Do(f.ep, b, floorTimeout)
		b.Release()
		if err != nil {
			return err
		}
		from = end
	}
	return nil
}

// post adds the op to a batch. It returns the buffer of the WRITE that was added last.
func (v *posted) post(b *rdma.Batch, written []byte) []byte {
	var op *rdma.Op
	switch v.Verb {
	case rdma.Read:
		op = b.Read(v.at, v.bytes)
	case rdma.Write:
		if !v.shared {
			written = b.Alloc(v.bytes)
		}
		op = b.Write(v.at, written)
	case rdma.CompareSwap:
		op = b.CompareSwap(v.at, v.atomic[0], v.atomic[1])
	case rdma.MaskedCompareSwap:
		op = b.MaskedCompareSwap(v.at, v.atomic[0], v.andMasks[0], v.atomic[1], v.andMasks[1])
	default:
		op = b.FetchAdd(v.at, v.atomic[1])
	}
	op.Fence = v.fence
	return written
}

func commitAll(f rdma.Fabric) error {
	for n := range f.Nodes() {
		if err := node.Commit(f, n, 0, f.Size()); err != nil {
			return err
		}
	}
	return nil
}
