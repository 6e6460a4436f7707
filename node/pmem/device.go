package pmem

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// LineBytes is what media reads and writes at a time, an XPLine (Rowan 2.1).
const LineBytes = 256

const (
	blocks  = LineBytes / unit // of a line
	allOnes = 1<<blocks - 1    // a line's blocks
)

// DeviceConfig describes interleaved modules of persistent memory, and the machine around them.
type DeviceConfig struct {
	DIMMs      int    // modules
	Interleave uint64 // consecutive bytes of one module: a multiple of LineBytes
	// Lines is the size of a module's XPBuffer in lines. Combining of them combine writes; the
	// others hold lines that were read.
	Lines, Combining int
	// WriteBandwidth and ReadBandwidth are of one module's media, in bytes a second.
	WriteBandwidth, ReadBandwidth float64
	ReadLatency                   time.Duration // of a read that the XPBuffer does not answer
	Queue                         int           // blocks of 64 bytes that wait in a module for its media
	EADR                          bool          // the processor's caches survive a loss of power
	DDIO                          bool          // DMA goes to the processor's caches
	CacheLines                    int           // written blocks of 64 bytes that the caches hold
	Seed                          uint64        // of the order in which the caches evict
}

// Testbed returns a machine of Rowan's evaluation: three modules in ADR mode, DDIO off (Rowan 2.1,
// 2.4, 6.1).
//
// Combining is the model's only fitted parameter. Beside it there are this rule, and what sim and
// workloads/simulate assume of traffic: logs are spread evenly over the modules, and a verb that
// waits for a module is answered later by a random time. They were chosen with their results in
// sight. The line that was written least recently is evicted when a write finds no line free, and a
// line that is complete stays until then, so that it takes writes again. With all 64 lines 48
// streams a module would fit, and no number of senders of the paper would amplify anything. But the
// XPBuffer also holds lines that are being read, the read half of its own read-modify-writes
// included, so that fewer combine. Of 144 streams of 64 bytes (Figure 2(a)) 46 of them give a DLWA
// of 2.4, 45 of 2.6; the paper has 2.48. Queue is our estimate: modules have one ahead of their
// buffers, of a page.
func Testbed() DeviceConfig {
	return DeviceConfig{
		DIMMs: 3, Interleave: 4 << 10, Lines: 64, Combining: 46, WriteBandwidth: 2e9, ReadBandwidth: 6e9,
		ReadLatency: 3 * DRAMLatency, Queue: 64, CacheLines: 64 << 10,
	}
}

// DRAMLatency is that of a read of main memory.
const DRAMLatency = 100 * time.Nanosecond

// Device is a model of persistent memory. It holds no data: it counts what real modules would
// count, and knows what a loss of power would destroy. Offsets are bytes of the interleaved memory.
// It is safe for concurrent use.
type Device struct {
	c DeviceConfig

	mu      sync.Mutex
	modules []module
	cache   cache
}

// Check returns why c describes no device, if so.
func (c *DeviceConfig) Check() error {
	if c.DIMMs < 1 || c.Interleave < LineBytes || c.Interleave%LineBytes != 0 || c.Queue < 1 || c.CacheLines < 1 ||
		c.Combining < 1 || c.Combining >= c.Lines || c.WriteBandwidth <= 0 || c.ReadBandwidth <= 0 {
		return fmt.Errorf("no persistent memory is %+v", *c)
	}
	return nil
}

// NewDevice returns a device that nothing was written to. It panics when c describes none.
func NewDevice(c DeviceConfig) *Device {
	if err := c.Check(); err != nil {
		panic("pmem: " + err.Error())
	}
	d := &Device{c: c, modules: make([]module, c.DIMMs)}
	for i := range d.modules {
		d.modules[i] = module{counters: DIMM{ID: fmt.Sprintf("model %d", i)}, c: &d.c}
	}
	d.cache = cache{at: map[uint64]int{}, rand: rand.New(rand.NewPCG(c.Seed, 0))}
	return d
}

// Write writes n bytes past the caches, as ntstore does. A write of a part of a block takes a
// request of 64 bytes.
func (d *Device) Write(off, n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	each(off, n, func(block uint64) {
		d.cache.drop(block)
		d.write(block)
	})
}

// Store writes n bytes to the processor's caches, which evict blocks in no particular order when
// they are full.
func (d *Device) Store(off, n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	each(off, n, func(block uint64) {
		if evicted, ok := d.cache.put(block, d.c.CacheLines); ok {
			d.write(evicted)
		}
	})
}

// Flush writes n bytes back from the caches, as clwb does.
func (d *Device) Flush(off, n uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	each(off, n, func(block uint64) {
		if d.cache.drop(block) {
			d.write(block)
		}
	})
}

// DMA writes n bytes as an RNIC does: to the caches with DDIO, past them without.
func (d *Device) DMA(off, n uint64) {
	if d.c.DDIO {
		d.Store(off, n)
		return
	}
	d.Write(off, n)
}

// Read reads n bytes, and returns the media's latency: 0 when the caches and the XPBuffer have them
// all.
func (d *Device) Read(off, n uint64) (latency time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	each(off, n, func(block uint64) {
		if !d.cache.has(block) && d.of(block).read(block) {
			latency = d.c.ReadLatency
		}
	})
	return latency
}

// Survives reports whether n bytes, as they were written last, survive a loss of power.
func (d *Device) Survives(off, n uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	survive := true
	each(off, n, func(block uint64) { survive = survive && (d.c.EADR || !d.cache.has(block)) })
	return survive
}

// PowerOff empties the XPBuffers to the media. The caches' blocks are written back before with
// EADR, and lost without.
func (d *Device) PowerOff() {
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.Sort(d.cache.blocks)
	for _, block := range d.cache.blocks {
		if d.c.EADR {
			d.write(block)
		}
	}
	d.cache.blocks = nil
	clear(d.cache.at)
	for i := range d.modules {
		d.modules[i].drain()
	}
}

// Counters returns what the modules counted, as IPMCTL.Read does.
func (d *Device) Counters() (all []DIMM) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.modules {
		c := d.modules[i].counters
		c.TotalMediaReads, c.TotalMediaWrites = c.MediaReads, c.MediaWrites
		c.TotalReadRequests, c.TotalWriteRequests = c.ReadRequests, c.WriteRequests
		all = append(all, c)
	}
	return all
}

// Busy returns for how long the media of the busiest module has read and written: work cannot have
// taken less.
func (d *Device) Busy() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	longest := 0.0
	for i := range d.modules {
		longest = max(longest, d.modules[i].worked())
	}
	return time.Duration(longest)
}

// Taken returns when the modules take n bytes at off that were just written or read, if those come
// at a time. A module's media does what its blocks ask of it one after the other, at its
// bandwidths; Queue blocks wait for it in the module, which takes another when the first of them
// has been served.
func (d *Device) Taken(now time.Duration, off, n uint64) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := float64(now)
	each(off, n, func(block uint64) {
		m := d.of(block)
		if m.waiting == nil {
			m.waiting = make([]float64, d.c.Queue)
		}
		first := &m.waiting[m.taken%uint64(len(m.waiting))]
		at = max(at, *first)
		worked := m.worked()
		m.served = max(m.served, at) + worked - m.charged
		*first, m.charged = m.served, worked
		m.taken++
	})
	return time.Duration(math.Ceil(at))
}

// each calls f with the numbers of the blocks that n bytes at off touch, in their order.
func each(off, n uint64, f func(block uint64)) {
	if n == 0 {
		return
	}
	for block := off / unit; block <= (off+n-1)/unit; block++ {
		f(block)
	}
}

func (d *Device) of(block uint64) *module {
	return &d.modules[block*unit/d.c.Interleave%uint64(len(d.modules))]
}

func (d *Device) write(block uint64) { d.of(block).write(block) }

// module is one DIMM. Its lines are in order of use, the last used first.
type module struct {
	counters  DIMM
	c         *DeviceConfig
	combining []xpline
	reading   []xpline
	// Of Taken, times in ns: when each of the last blocks is served, in a ring, and how many there
	// were; when the last of all is, and how much of the media's work that counts.
	waiting         []float64
	taken           uint64
	served, charged float64
}

// worked returns for how many ns its media has read and written.
func (m *module) worked() float64 {
	c := &m.counters
	// for a byte of each unit
	took := float64(c.MediaWrites)/m.c.WriteBandwidth + float64(c.MediaReads)/m.c.ReadBandwidth
	return took * unit * float64(time.Second)
}

// xpline is a line of the XPBuffer, and which of its blocks were written.
type xpline struct {
	number  uint64
	written uint8
}

// use returns a line of a buffer, which becomes the first; nil: it is not there.
func use(lines []xpline, number uint64) *xpline {
	i := slices.IndexFunc(lines, func(l xpline) bool { return l.number == number })
	if i < 0 {
		return nil
	}
	l := lines[i]
	copy(lines[1:i+1], lines[:i])
	lines[0] = l
	return &lines[0]
}

// write takes a block into the buffer.
func (m *module) write(block uint64) {
	m.counters.WriteRequests++
	l := use(m.combining, block/blocks)
	if l == nil {
		if len(m.combining) == m.c.Combining {
			m.evict()
		}
		m.combining = slices.Insert(m.combining, 0, xpline{number: block / blocks})
		l = &m.combining[0]
	}
	l.written |= 1 << (block % blocks)
}

// evict writes the line that was written least recently. One that is not complete is read first:
// its blocks are less than the media writes at a time.
func (m *module) evict() {
	last := len(m.combining) - 1
	if m.combining[last].written != allOnes {
		m.counters.MediaReads += blocks
	}
	m.counters.MediaWrites += blocks
	m.combining = m.combining[:last]
}

func (m *module) drain() {
	for len(m.combining) > 0 {
		m.evict()
	}
	m.reading = nil
}

// read reports whether the media had to be read.
func (m *module) read(block uint64) bool {
	m.counters.ReadRequests++
	number := block / blocks
	if l := use(m.combining, number); l != nil && l.written>>(block%blocks)&1 != 0 || use(m.reading, number) != nil {
		return false
	}
	m.counters.MediaReads += blocks
	if len(m.reading) == m.c.Lines-m.c.Combining {
		m.reading = m.reading[:len(m.reading)-1]
	}
	m.reading = slices.Insert(m.reading, 0, xpline{number: number})
	return true
}

// cache holds the numbers of blocks that were written and are in no module yet.
type cache struct {
	blocks []uint64
	at     map[uint64]int // their places in blocks
	rand   *rand.Rand
}

func (c *cache) has(block uint64) bool { _, ok := c.at[block]; return ok }

// put adds a block, and returns the one that had to make room for it, if one had to.
func (c *cache) put(block uint64, most int) (evicted uint64, ok bool) {
	if c.has(block) {
		return 0, false
	}
	if ok = len(c.blocks) == most; ok {
		evicted = c.blocks[c.rand.IntN(most)]
		c.drop(evicted)
	}
	c.at[block] = len(c.blocks)
	c.blocks = append(c.blocks, block)
	return evicted, ok
}

// drop removes a block, and reports whether it was there.
func (c *cache) drop(block uint64) bool {
	at, ok := c.at[block]
	if !ok {
		return false
	}
	last := len(c.blocks) - 1
	c.blocks[at] = c.blocks[last]
	c.at[c.blocks[at]] = at
	c.blocks = c.blocks[:last]
	delete(c.at, block)
	return true
}
