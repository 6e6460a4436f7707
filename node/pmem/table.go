package pmem

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/farkv/farkv/node/rdma/memcopy"
)

// ErrFull is wrapped when a table has no room for another record.
var ErrFull = errors.New("the table of persistent memory is full")

// Table is a few small records by key, each replaced as a whole. It is safe for concurrent use.
//
// It has two halves, of which one is in use. Put appends a record there. When that half is full all
// records are written to the other half, under the next generation, and the header of that
// generation last. A record's checksum begins with the half's nonce, which is random each time. So
// the first record that is torn, or that was there before, ends the half: a rewrite that crashed
// leaves records of the same generation. A crash leaves each record as it was, or as an unfinished
// Put would have made it.
type Table struct {
	r         *Region
	off, half uint64

	mu    sync.Mutex
	gen   uint64 // of the half in use, which is half gen%2; 0: none is yet
	nonce uint64
	end   uint64 // of its records
	live  map[string][]byte
	bytes uint64 // of these as records
}

const (
	halfHead   = 24 // the generation, the nonce and their checksum
	recordHead = 16 // the record's checksum u32, the lengths of value u32 and key u32, and 4 bytes of 0
)

func openTable(r *Region, off, size uint64, fresh bool) (*Table, error) {
	t := &Table{r: r, off: off, half: size / 2, live: map[string][]byte{}}
	if t.half < halfHead || t.half%8 != 0 {
		return nil, fmt.Errorf("a table of %d bytes: %w", size, ErrSize)
	}
	if fresh {
		return t, t.rewrite()
	}
	for n := range uint64(2) {
		p := t.read(n*t.half, halfHead)
		gen := binary.LittleEndian.Uint64(p)
		if gen > t.gen && gen%2 == n && binary.LittleEndian.Uint64(p[16:]) == uint64(crc32.Checksum(p[:16],
			castagnoli)) {
			t.gen, t.nonce = gen, binary.LittleEndian.Uint64(p[8:])
		}
	}
	if t.gen == 0 {
		return nil, fmt.Errorf("%w: neither half of its table has a good checksum", ErrDamaged)
	}
	t.load()
	return t, nil
}

// read copies n bytes at an offset of the table.
func (t *Table) read(at, n uint64) []byte {
	p := make([]byte, n)
	memcopy.Load(p, unsafe.Pointer(&t.r.m[t.off+at]))
	return p
}

// load reads the records of the half in use.
func (t *Table) load() {
	p := t.read(t.gen%2*t.half, t.half)
	for t.end = halfHead; ; {
		key, value, size := t.parse(p[t.end:])
		if size == 0 {
			return
		}
		t.set(key, value)
		t.end += size
	}
}

// parse returns the record that p begins with, and its size; 0: there is none.
func (t *Table) parse(p []byte) (key string, value []byte, size uint64) {
	if len(p) < recordHead {
		return "", nil, 0
	}
	le := binary.LittleEndian
	v, k := uint64(le.Uint32(p[4:])), uint64(le.Uint32(p[8:]))
	size = sizeOf(k, v)
	if size > uint64(len(p)) || le.Uint32(p) != t.sum(p[4:size]) {
		return "", nil, 0
	}
	return string(p[recordHead : recordHead+k]), p[recordHead+k : recordHead+k+v : recordHead+k+v], size
}

func sizeOf(key, value uint64) uint64 { return (recordHead + key + value + 7) &^ 7 }

// sum is the checksum of a record of the half in use.
func (t *Table) sum(p []byte) uint32 {
	return crc32.Update(crc32.Checksum(binary.LittleEndian.AppendUint64(nil, t.nonce), castagnoli), castagnoli, p)
}

// encode appends a record of the half in use.
func (t *Table) encode(p []byte, key string, value []byte) []byte {
	at, le := len(p), binary.LittleEndian
	p = append(p, make([]byte, sizeOf(uint64(len(key)), uint64(len(value))))...)
	r := p[at:]
	le.PutUint32(r[4:], uint32(len(value)))
	le.PutUint32(r[8:], uint32(len(key)))
	copy(r[recordHead:], key)
	copy(r[recordHead+len(key):], value)
	le.PutUint32(r, t.sum(r[4:]))
	return p
}

// set replaces a record in main memory; nil removes it. The caller holds mu, or is alone.
func (t *Table) set(key string, value []byte) {
	if old, ok := t.live[key]; ok {
		t.bytes -= sizeOf(uint64(len(key)), uint64(len(old)))
		delete(t.live, key)
	}
	if value != nil {
		t.live[key] = slices.Clone(value)
		t.bytes += sizeOf(uint64(len(key)), uint64(len(value)))
	}
}

// Room returns how many bytes of records a table holds at most. One takes 32 more than its key and
// value, at most.
func (t *Table) Room() uint64 { return t.half - halfHead }

// Put replaces a record. It is durable when Put has returned nil. An error wraps ErrFull, and
// changes nothing, or is the region's Fence's: then the record may be there.
func (t *Table) Put(key string, value []byte) error {
	if err := t.put(key, value); err != nil {
		return fmt.Errorf("put record %q: %w", key, err)
	}
	return nil
}

func (t *Table) put(key string, value []byte) error {
	t.mu.Lock()
	old, was := t.live[key]
	size := sizeOf(uint64(len(key)), uint64(len(value)))
	all := t.bytes + size
	if was {
		all -= sizeOf(uint64(len(key)), uint64(len(old)))
	}
	var err error
	switch {
	case all > t.Room():
		err = fmt.Errorf("%d bytes of records, and room for %d: %w", all, t.Room(), ErrFull)
	case was && string(old) == string(value): // it may not be durable yet
	case t.end+size > t.half:
		t.set(key, value)
		err = t.rewrite()
	default:
		t.r.store(t.off+t.gen%2*t.half+t.end, t.encode(nil, key, value))
		t.end += size
		t.set(key, value)
	}
	t.mu.Unlock() // others append while this one waits for the medium, and share its wait
	if err != nil {
		return err
	}
	return t.r.Fence()
}

// Get returns a record; nil: there is none. It is not to be changed.
func (t *Table) Get(key string) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live[key]
}

// Keys returns the keys that begin with a prefix, sorted.
func (t *Table) Keys(prefix string) (keys []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(t.live)) {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Reset replaces all records by one, in one step.
func (t *Table) Reset(key string, value []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.live)
	t.bytes = 0
	t.set(key, value)
	return t.rewrite()
}

// rewrite begins the next generation with the live records. The caller holds mu.
func (t *Table) rewrite() error {
	var nonce [8]byte
	rand.Read(nonce[:]) // never fails
	t.gen++
	t.nonce = binary.LittleEndian.Uint64(nonce[:])
	var p []byte
	for _, key := range slices.Sorted(maps.Keys(t.live)) {
		p = t.encode(p, key, t.live[key])
	}
	at := t.off + t.gen%2*t.half
	if len(p) > 0 {
		t.r.store(at+halfHead, p)
	}
	t.end = halfHead + uint64(len(p))
	if err := t.r.Fence(); err != nil {
		return err
	}
	head := append(binary.LittleEndian.AppendUint64(nil, t.gen), nonce[:]...)
	t.r.store(at, binary.LittleEndian.AppendUint64(head, uint64(crc32.Checksum(head, castagnoli))))
	return t.r.Fence()
}
