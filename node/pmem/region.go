package pmem

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma/memcopy"
)

// Survival is what stored bytes outlive.
type Survival int

// The kinds of survival.
const (
	Nothing Survival = iota // they end with the process
	Process                 // the process may be killed at any instruction; the machine may not
	Power                   // power may be lost: of what was fenced everything is there, of the rest any words
)

func (s Survival) String() string { return [...]string{"nothing", "the process", "power"}[s] }

// What callers of Open branch on, beside ENOSPC, EROFS and EACCES.
var (
	// ErrForeign is wrapped when a file holds something else, or is another user's.
	ErrForeign = errors.New("it is no memory of a node")
	// ErrVersion is wrapped when a file holds a region in a format that this version does not read.
	ErrVersion = errors.New("it was made by another version of farkv")
	// ErrSize is wrapped when a file holds a region of another size.
	ErrSize = errors.New("it has another size")
	// ErrCut is wrapped when a file holds less than the region that it was made for.
	ErrCut = errors.New("it was cut short")
	// ErrInUse is wrapped when another process has the file open as a region.
	ErrInUse = errors.New("another process uses it")
	// ErrDamaged is wrapped when a checksum of the file's header or table is wrong.
	ErrDamaged = errors.New("it is damaged")
	// ErrVolatile is wrapped when power is to be survived where that is not possible.
	ErrVolatile = errors.New("it cannot survive a loss of power")
)

// Options shape a region.
type Options struct {
	Memory uint64 // bytes of memory: a multiple of 4096
	Table  uint64 // bytes of the table: a multiple of 8192
	Power  bool   // Fence waits until what was stored survives a loss of power
}

// Medium is what a region is mapped from.
type Medium interface {
	// Sync returns when all that was stored survives a loss of power.
	Sync() error
	// Zero makes n bytes at off zero, if it can do that faster than stores.
	Zero(off, n uint64) (done bool, err error)
	Close() error
}

// Region is mapped persistent memory: a header, a table of records, and memory, which begins at
// Base. What a caller stores there between Begin and End is durable when a Fence has returned that
// began after End.
//
// There is no CLWB here: Go has no such instruction, so that Fence calls fdatasync, on DAX too.
// Callers of Fence that wait at the same time share one call. Where a Region survives the process
// only, stores are durable at once.
type Region struct {
	o        Options
	medium   Medium
	m        []byte
	survives Survival
	why      string
	table    *Table

	// gate is held for reading during stores, and for writing between two: what was marked before a
	// moment at which it was free has been stored. Only regions that call Sync use it.
	gate    sync.RWMutex
	stores  atomic.Uint64 // that have begun
	synced  atomic.Uint64 // of them, that survive a loss of power
	syncing sync.Mutex
	closing sync.Once
	failed  error // of Sync, under syncing: what survives is unknown from then on

	bytes, fences, syncs atomic.Uint64
}

// Counters count since a region was opened.
type Counters struct {
	Stores, Bytes uint64 // that were announced, those of the table too
	Fences, Syncs uint64
}

// Bytes returns the size of a mapping of these options.
func (o Options) Bytes() uint64 { return headerPage + o.Table + o.Memory }

const (
	headerPage = 4096
	magicName  = "farkv pmem "
	format     = "1"
	magic      = magicName + format + "\n\x00\x00\x00"
	headerUsed = len(magic) + 3*8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Open maps the region in a file, which it makes if it is not there. What a crash left of the
// making of a file is made again.
func Open(path string, o Options) (*Region, error) {
	r, err := open(path, o)
	if err != nil {
		return nil, fmt.Errorf("open persistent memory %s: %w", path, err)
	}
	return r, nil
}

func open(path string, o Options) (*Region, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, plain(err)
	}
	m, err := claim(f, o.Bytes(), o.Power)
	if err != nil {
		f.Close()
		return nil, err
	}
	survives, why := Process, "memory-mapped file"
	switch {
	case m.dax && cachesSurvive():
		survives, why = Power, "DAX, and the processor's caches survive"
		m.sync = func() error { return nil }
	case o.Power && m.device:
		err = fmt.Errorf("%w: a DAX device needs CLWB, or caches that survive", ErrVolatile)
	case o.Power && m.dax:
		survives, why = Power, "DAX, flushed by fdatasync: this program has no CLWB"
	case o.Power:
		survives, why = Power, "plain file, flushed by fdatasync"
	case m.dax:
		why = "DAX, not flushed"
	}
	var r *Region
	if err == nil {
		r, err = newRegion(m.m, m, o, survives, why)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return r, nil
}

// plain leaves out what os puts around an error's reason: callers name the file.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// On returns the region in a mapping of a medium, which survives power where o says so: for tests
// that log what a medium is asked, and lose power.
func On(m []byte, medium Medium, o Options) (*Region, error) {
	survives := Process
	if o.Power {
		survives = Power
	}
	return newRegion(m, medium, o, survives, "medium of a test")
}

// newRegion takes a mapping for a region's, and makes a region of one that is none yet.
func newRegion(m []byte, medium Medium, o Options, survives Survival, why string) (*Region, error) {
	r := &Region{o: o, medium: medium, m: m, survives: survives, why: why}
	fresh, err := r.identify()
	if err != nil {
		return nil, err
	}
	if fresh {
		err = r.clear(headerPage, o.Table+o.Memory)
	}
	if err == nil {
		r.table, err = openTable(r, headerPage, o.Table, fresh)
	}
	if err == nil && fresh { // last: a crash before leaves a file that is none yet
		h := r.header()
		r.store(8, h[8:])
		if err = r.Fence(); err == nil {
			r.store(0, h[:8])
			err = r.Fence()
		}
	}
	if err != nil {
		return nil, err
	}
	// of a process before, which was killed before it flushed: the first Fence covers what is read
	// of it now
	r.stores.Add(1)
	return r, nil
}

// header is what a region of these options begins with.
func (r *Region) header() []byte {
	p := make([]byte, headerUsed)
	copy(p, magic)
	le := binary.LittleEndian
	le.PutUint64(p[len(magic):], r.o.Memory)
	le.PutUint64(p[len(magic)+8:], r.o.Table)
	le.PutUint64(p[headerUsed-8:], uint64(crc32.Checksum(p[:headerUsed-8], castagnoli)))
	return p
}

// intact reports whether p begins with a header that is whole.
func intact(p []byte) bool {
	return len(p) >= headerUsed && string(p[:len(magic)]) == magic &&
		binary.LittleEndian.Uint64(p[headerUsed-8:]) == uint64(crc32.Checksum(p[:headerUsed-8], castagnoli))
}

// otherVersion returns an error if p begins with the header of another version, whatever that has
// in it.
func otherVersion(p []byte) error {
	rest, ours := bytes.CutPrefix(p[:min(len(p), len(magic))], []byte(magicName))
	number, _, ok := bytes.Cut(rest, []byte("\n"))
	if n, err := strconv.ParseUint(string(number), 10, 32); ours && ok && err == nil && string(number) != format {
		return fmt.Errorf("%w: its format is %d, and this one reads %s", ErrVersion, n, format)
	}
	return nil
}

// identify reports whether the mapping is no region yet. Its first word is written last: without
// that there is nothing but zeros and words of the header.
func (r *Region) identify() (fresh bool, err error) {
	p, want := make([]byte, headerPage), make([]byte, headerPage)
	memcopy.Load(p, unsafe.Pointer(unsafe.SliceData(r.m)))
	copy(want, r.header())
	le := binary.LittleEndian
	fresh = le.Uint64(p) == 0
	for at := 8; at < headerPage; at += 8 {
		if w := le.Uint64(p[at:]); w != 0 && w != le.Uint64(want[at:]) {
			fresh = false
		}
	}
	switch {
	case fresh:
		return true, nil
	case string(p[:8]) != magic[:8]:
		return false, fmt.Errorf("%w: there is something else in it (hint: name another file, or remove it)",
			ErrForeign)
	}
	if err := otherVersion(p); err != nil {
		return false, err
	}
	if !intact(p) {
		return false, fmt.Errorf("%w: its header's checksum is wrong", ErrDamaged)
	}
	if memory, table := le.Uint64(p[len(magic):]), le.Uint64(p[len(magic)+8:]); memory != r.o.Memory ||
		table != r.o.Table {
		return false, fmt.Errorf("%w: it holds %d bytes of memory and a table of %d, and %d and %d are wanted", ErrSize,
			memory, table, r.o.Memory, r.o.Table)
	}
	return false, nil
}

// Survives returns what fenced bytes outlive, and in a few words why.
func (r *Region) Survives() (s Survival, why string) { return r.survives, r.why }

// Table returns the region's records.
func (r *Region) Table() *Table { return r.table }

// Base returns where the memory begins, and Size how many bytes it has.
func (r *Region) Base() unsafe.Pointer { return unsafe.Pointer(&r.m[headerPage+r.o.Table]) }

// Size returns the bytes of the memory.
func (r *Region) Size() uint64 { return r.o.Memory }

// Counters returns what was done so far.
func (r *Region) Counters() Counters {
	return Counters{Stores: r.stores.Load(), Bytes: r.bytes.Load(), Fences: r.fences.Load(), Syncs: r.syncs.Load()}
}

// flushes reports whether Fence has something to do.
func (r *Region) flushes() bool { return r.o.Power && r.survives == Power }

// Begin is called before loads and stores that the caller does itself, at Base, and End behind
// them. What was loaded is durable when a Fence that began behind End has returned, too: what was
// done because of it does not outlive it.
func (r *Region) Begin() {
	if r.flushes() {
		r.gate.RLock()
	}
}

// Mark announces a store of n bytes between Begin and End.
func (r *Region) Mark(n int) {
	r.bytes.Add(uint64(n))
	r.stores.Add(1)
}

// End is called behind what Begin was called for.
func (r *Region) End() {
	if r.flushes() {
		r.gate.RUnlock()
	}
}

// store stores p at an offset of the whole mapping, word by word.
func (r *Region) store(off uint64, p []byte) {
	r.gate.RLock()
	defer r.gate.RUnlock()
	r.Mark(len(p))
	memcopy.Store(unsafe.Pointer(&r.m[off]), p)
}

// Fence returns when all that was stored before is durable. Its errors are for good.
func (r *Region) Fence() error {
	r.fences.Add(1)
	if !r.flushes() {
		return nil
	}
	upTo := r.stores.Load()
	if r.synced.Load() >= upTo {
		return nil
	}
	r.syncing.Lock()
	defer r.syncing.Unlock()
	if r.failed != nil || r.synced.Load() >= upTo { // by the call of another that waited here
		return r.failed
	}
	r.gate.Lock()
	upTo = r.stores.Load()
	r.gate.Unlock()
	r.syncs.Add(1)
	if err := r.medium.Sync(); err != nil {
		r.failed = fmt.Errorf("flush persistent memory: %w", err)
		return r.failed
	}
	r.synced.Store(upTo)
	return nil
}

// Clear makes all memory zero, durably. No store may be under way.
func (r *Region) Clear() error { return r.clear(headerPage+r.o.Table, r.o.Memory) }

func (r *Region) clear(off, n uint64) error {
	done, err := r.medium.Zero(off, n)
	if err != nil {
		return fmt.Errorf("make %d bytes of persistent memory zero: %w", n, err)
	}
	zeros := make([]byte, 64<<10)
	for at := off; !done && at < off+n; at += uint64(len(zeros)) {
		r.store(at, zeros[:min(uint64(len(zeros)), off+n-at)])
	}
	r.stores.Add(1)
	return r.Fence()
}

// Close unmaps the region, once. No store may be under way.
func (r *Region) Close() (err error) {
	r.closing.Do(func() { err = r.medium.Close() })
	return err
}

// mapped is a file that is mapped.
type mapped struct {
	f           *os.File
	m           []byte
	dax, device bool
	sync        func() error
}

// Sync implements Medium.
func (m *mapped) Sync() error { return m.sync() }

// Close implements Medium.
func (m *mapped) Close() error { return errors.Join(unix.Munmap(m.m), m.f.Close()) }

// claim takes a file for this process alone, and maps size bytes of it. They all have room from now
// on. Content that is none of a region stays as it is.
func claim(f *os.File, size uint64, power bool) (*mapped, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() && st.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: it belongs to user %d, and this is user %d", ErrForeign, sys.Uid, os.Geteuid())
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, ErrInUse
	}
	m := &mapped{f: f}
	m.sync = func() error { return dataSync(f) }
	switch {
	case st.Mode()&fs.ModeCharDevice != 0:
		m.device = true
		err = daxDevice(f, size)
	case !st.Mode().IsRegular():
		err = fmt.Errorf("%w: it is no regular file", ErrForeign)
	case power && inMainMemory(f):
		err = fmt.Errorf("%w: its file system is in main memory", ErrVolatile)
	default:
		err = provide(f, uint64(st.Size()), size)
	}
	if err == nil {
		m.m, m.dax, err = mapShared(f, size, m.device)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// provide gives a file its length and its room, unless it holds something that is no region of that
// size.
func provide(f *os.File, has, size uint64) error {
	first := make([]byte, min(has, uint64(headerUsed)))
	if _, err := f.ReadAt(first, 0); err != nil {
		return plain(err)
	}
	switch ours := len(first) >= 8 && string(first[:8]) == magic[:8]; {
	case has == 0, has == size:
	case !ours:
		return fmt.Errorf("%w: there is something else in it (hint: name another file, or remove it)", ErrForeign)
	default:
		if err := otherVersion(first); err != nil {
			return err
		}
		if made := madeFor(first, size); has < made {
			return fmt.Errorf("%w: it has %d of %d bytes", ErrCut, has, made)
		}
		return fmt.Errorf("%w: it has %d bytes, and %d are wanted", ErrSize, has, size)
	}
	if has == 0 {
		if err := errors.Join(f.Truncate(int64(size)), syncFolder(f)); err != nil {
			return plain(err)
		}
	}
	if err := reserve(f, size); err != nil {
		if has == 0 { // it was made here, and holds nothing
			err = errors.Join(err, f.Truncate(0))
		}
		return fmt.Errorf("make room for %d bytes: %w", size, err)
	}
	return nil
}

// madeFor returns the size of the file that a header was made for, where it is whole; else the one
// that is wanted.
func madeFor(header []byte, wanted uint64) uint64 {
	if !intact(header) {
		return wanted
	}
	le := binary.LittleEndian
	return Options{Memory: le.Uint64(header[len(magic):]), Table: le.Uint64(header[len(magic)+8:])}.Bytes()
}

// Holds reports whether a file may hold data of a pool. It does not if the file is empty, or is a
// region with nothing but zeros in its memory.
func Holds(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return true, fmt.Errorf("look into persistent memory: %w", err)
	}
	defer f.Close()
	zeros, p := make([]byte, 64<<10), make([]byte, 64<<10)
	skip := int64(0) // what a region has that nothing is stored in yet
	for at := int64(0); ; at += int64(len(p)) {
		n, err := io.ReadFull(io.NewSectionReader(f, at, int64(len(p))), p)
		got := p[:n]
		if at == 0 && intact(got) {
			skip = int64(headerPage + binary.LittleEndian.Uint64(got[len(magic)+8:]))
		}
		got = got[min(max(skip-at, 0), int64(n)):]
		switch {
		case !bytes.Equal(got, zeros[:len(got)]):
			return true, nil
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return false, nil
		case err != nil:
			return true, fmt.Errorf("look into persistent memory: %w", err)
		}
	}
}

// syncFolder makes a new file's name durable.
func syncFolder(f *os.File) error {
	folder, err := os.Open(filepath.Dir(f.Name()))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}
