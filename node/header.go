// Package node is what a memory node holds and does: the header that names a pool's store, the
// division of its memory into replicated regions and blocks (FUSEE 4.4), and the procedures that it
// runs for clients.
package node

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/node/rdma"
)

// HeaderBytes is the size of the header at offset 0 of every node.
const HeaderBytes = 4096

// Header says what a pool holds. Every node carries a copy, which differs only in Node. It is
// written once, before the pool is visible to any other process.
type Header struct {
	Store   string // the format's name
	Version uint32 // of the store's format
	Params  []byte // the store's own, as JSON
	Nodes   int
	Node    int    // the node that has this copy
	Size    uint64 // bytes of registered memory that the store has
	// Telemetry is how many bytes more are registered, behind the store's: see package telemetry.
	// 0: none, as in pools of programs that knew of none.
	Telemetry uint32
}

// What callers branch on.
var (
	// ErrNoStore is wrapped when a pool has no valid header.
	ErrNoStore = errors.New("pool holds no store")
	// ErrOtherStore is wrapped when a pool holds another store.
	ErrOtherStore = errors.New("pool holds another store")
	// ErrOtherVersion is wrapped when a pool holds a store in a format that this program does not
	// read.
	ErrOtherVersion = errors.New("pool has another version of its store's format")
)

const (
	headerMagic   = 0x31726468766b7266 // "frkvhdr1"
	headerFixed   = 40
	headerSumAt   = HeaderBytes - 8
	headerPayload = headerSumAt - headerFixed
	headerTimeout = 5 * time.Second // formatting and opening are rare; a node that takes longer is down
)

// encode lays h out: magic, version, lengths and geometry, name, parameters; a checksum over all of
// it at the end.
func (h Header) encode(p []byte) error {
	if len(h.Store)+len(h.Params) > headerPayload {
		return fmt.Errorf("encode pool header: %d bytes of parameters: %w", len(h.Params), rdma.ErrFull)
	}
	clear(p[:HeaderBytes])
	le := binary.LittleEndian
	le.PutUint64(p[0:], headerMagic)
	le.PutUint32(p[8:], h.Version)
	le.PutUint32(p[12:], uint32(len(h.Store)))
	le.PutUint32(p[16:], uint32(len(h.Params)))
	le.PutUint32(p[20:], uint32(h.Nodes))
	le.PutUint32(p[24:], uint32(h.Node))
	le.PutUint32(p[28:], h.Telemetry)
	le.PutUint64(p[32:], h.Size)
	n := copy(p[headerFixed:], h.Store)
	copy(p[headerFixed+n:], h.Params)
	le.PutUint64(p[headerSumAt:], xxhash.Sum64(p[:headerSumAt]))
	return nil
}

func decodeHeader(p []byte) (Header, error) {
	le := binary.LittleEndian
	if len(p) < HeaderBytes || le.Uint64(p) != headerMagic {
		return Header{}, fmt.Errorf("read pool header: %w", ErrNoStore)
	}
	if le.Uint64(p[headerSumAt:]) != xxhash.Sum64(p[:headerSumAt]) {
		return Header{}, fmt.Errorf("read pool header: bad checksum: %w", ErrNoStore)
	}
	name, params := uint64(le.Uint32(p[12:])), uint64(le.Uint32(p[16:]))
	if name+params > headerPayload {
		return Header{}, fmt.Errorf("read pool header: %d bytes of parameters: %w", params, ErrNoStore)
	}
	body := p[headerFixed:]
	return Header{
		Store: string(body[:name]), Params: append([]byte(nil), body[name:name+params]...),
		Version: le.Uint32(p[8:]), Nodes: int(le.Uint32(p[20:])), Node: int(le.Uint32(p[24:])), Size: le.Uint64(p[32:]),
		Telemetry: le.Uint32(p[28:]),
	}, nil
}

// Commit backs n bytes at off of a node where the fabric asks for it: see rdma.Committer.
func Commit(f rdma.Fabric, node int, off, n uint64) error {
	if c, ok := f.(rdma.Committer); ok {
		return c.Commit(node, off, n)
	}
	return nil
}

// StepReadHeader is the READ of a pool's header, by which clients find its store.
const StepReadHeader rdma.Step = "read header"

// WriteHeader writes h to every node of a new pool.
func WriteHeader(f rdma.Fabric, ep rdma.Endpoint, h Header) error {
	if g, ok := f.(rdma.Geometer); ok {
		bytes := g.Geometry().Telemetry
		if h.Telemetry = uint32(bytes); uint64(h.Telemetry) != bytes {
			return fmt.Errorf("write pool header: %d bytes of telemetry: %w", bytes, rdma.ErrFull)
		}
	}
	for n := range f.Nodes() {
		if err := Commit(f, n, 0, HeaderBytes); err != nil {
			return fmt.Errorf("write pool header to node %d: %w", n, err)
		}
		h.Nodes, h.Node, h.Size = f.Nodes(), n, f.Size()
		b := ep.Batch()
		p := b.Alloc(HeaderBytes)
		err := h.encode(p)
		if err == nil {
			b.Write(rdma.At(n, 0), p)
			err = rdma.Do(ep, b, headerTimeout)
		}
		b.Release()
		if err != nil {
			return fmt.Errorf("write pool header to node %d: %w", n, err)
		}
	}
	return nil
}

// ReadHeader reads the header of the first of the given number of nodes that answers.
func ReadHeader(ep rdma.Endpoint, nodes int) (Header, error) {
	var last error
	for n := range nodes {
		b := ep.Batch()
		op := b.Read(rdma.At(n, 0), HeaderBytes)
		if last = rdma.Do(ep, b.As(StepReadHeader), headerTimeout); last == nil {
			h, err := decodeHeader(op.Buf)
			b.Release()
			if err == nil && h.Nodes != nodes { // stores lay out the pool by it
				err = fmt.Errorf("read pool header: it is of a pool of %d nodes, this one has %d: %w", h.Nodes, nodes,
					ErrNoStore)
			}
			return h, err
		}
		b.Release()
		if !errors.Is(last, rdma.ErrNodeDown) {
			break
		}
	}
	return Header{}, fmt.Errorf("read pool header: %w", last)
}

// Expect returns an error wrapping ErrOtherStore unless h names the given store, and one wrapping
// ErrOtherVersion unless it names the given version.
func (h Header) Expect(store string, version uint32) error {
	return h.ExpectSince(store, version, version)
}

// ExpectSince is Expect of a store that reads older versions, too, down to oldest; 0: none.
func (h Header) ExpectSince(store string, oldest, version uint32) error {
	if h.Store != store {
		return fmt.Errorf("%w: it was made for %q, not %q", ErrOtherStore, h.Store, store)
	}
	if h.Version != version && (h.Version > version || h.Version < cmp.Or(oldest, version)) {
		age := "older"
		if h.Version > version {
			age = "newer"
		}
		return fmt.Errorf("%w: its %s has version %d, which is %s than version %d, the one that this program reads",
			ErrOtherVersion, store, h.Version, age, version)
	}
	return nil
}
