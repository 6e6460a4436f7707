package pmem

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// streams appends to exclusive logs, spread evenly over the modules: each writes again when its
// last write is over, and those take as long, or up to a half longer. sizes are in bytes, by
// stream.
func streams(d *Device, sizes []uint64, rounds int) {
	r := rand.New(rand.NewPCG(1, 2))
	at, next := make([]uint64, len(sizes)), make([]float64, len(sizes))
	round := d.c.Interleave * uint64(d.c.DIMMs)
	for i, size := range sizes {
		at[i] = (uint64(i)*(1<<10)*round + uint64(i)*round/uint64(len(sizes))) / size * size
		next[i] = r.Float64()
	}
	for range rounds * len(sizes) {
		i := slices.Index(next, slices.Min(next))
		d.DMA(at[i], sizes[i])
		at[i] += sizes[i]
		next[i] += 1 + r.Float64()/2
	}
}

// repeat returns n sizes.
func repeat(size uint64, n int) []uint64 {
	all := make([]uint64, n)
	for i := range all {
		all[i] = size
	}
	return all
}

// TestFigure2 compares the model with what Rowan 2.4 and 6.2 measured on three DIMMs. One figure is
// calibrated: it has to come out, as near as whole lines of the buffer allow. The others are
// predictions, each with how far off it may be. What the paper calls negligible, or below a bound,
// may be more than 1 by a tenth. Bandwidths are in GB/s, 0: none is given; they may be off by a
// fifth. How fast senders are beside threads of the machine is a matter of the network: 'farkv
// report rowan' has these.
func TestFigure2(t *testing.T) {
	const rounds = 2000
	local := repeat(128, 18)
	t.Logf("%-44s %-12s %6s %6s %6s %6s", "streams", "", "paper", "model", "GB/s", "model")
	for _, c := range []struct {
		name       string
		sizes      []uint64
		calibrated bool
		dlwa       float64
		within     float64
		bandwidth  float64
	}{
		{"2(a) 144 of 64 B", repeat(64, 144), true, 2.48, 0.1, 0},
		{"2(b) 144 of 128 B", repeat(128, 144), false, 1.58, 0.06, 0},
		{"2(a) 72 of 64 B", repeat(64, 72), false, 1, 0.05, 0},
		{"2(b) 72 of 128 B", repeat(128, 72), false, 1, 0.05, 0},
		{"2(a) 90 of 64 B", repeat(64, 90), false, 1, 0.1, 0},
		{"2(b) 90 of 128 B", repeat(128, 90), false, 1, 0.1, 0},
		{"2(c) 18 of 128 B", local, false, 1, 0.05, 5.2},
		{"8(a) Rowan, 1 of 64 B", repeat(64, 1), false, 1.029, 0.04, 0},
		{"8(c) Rowan, 1 of 64 B, 18 of 128 B", append(repeat(64, 1), local...), false, 1.056, 0.06, 0},
	} {
		d := NewDevice(Testbed())
		streams(d, c.sizes, max(rounds*144/len(c.sizes), rounds))
		kind := "predicted"
		if c.calibrated {
			kind = "calibrated"
		}
		got, requests := dlwa(d.Counters()), uint64(0)
		for _, m := range d.Counters() {
			requests += m.WriteRequests
		}
		rate := float64(requests*unit) / d.Busy().Seconds() / 1e9
		t.Logf("%-44s %-12s %6.2f %6.2f %6.1f %6.1f", c.name, kind, c.dlwa, got, c.bandwidth, rate)
		if got < c.dlwa-c.within || got > c.dlwa+c.within {
			t.Errorf("%s: DLWA %.3f, want %.2f within %.2f", c.name, got, c.dlwa, c.within)
		}
		if c.bandwidth > 0 && (rate < 0.8*c.bandwidth || rate > 1.2*c.bandwidth) {
			t.Errorf("%s: %.2f GB/s, want %.1f within a fifth", c.name, rate, c.bandwidth)
		}
	}
}

// TestDevice does random things to devices of random shapes: what a device counts is compared with
// what was asked of it.
func TestDevice(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		c := Testbed()
		c.DIMMs, c.Interleave, c.CacheLines, c.Seed = 1+r.IntN(4), LineBytes<<r.IntN(5), 1+r.IntN(32), seed
		c.Lines = 2 + r.IntN(20)
		c.Combining = 1 + r.IntN(c.Lines-1)
		c.EADR, c.DDIO = r.IntN(2) == 0, r.IntN(2) == 0
		checkDevice(t, r, c)
		if t.Failed() {
			t.Fatalf("seed %d: %+v", seed, c)
		}
	}
}

// checkDevice notes the blocks that are safe: they went past the caches or were flushed, and were
// not stored later. It also notes the lines that a write was in.
func checkDevice(t *testing.T, r *rand.Rand, c DeviceConfig) {
	d := NewDevice(c)
	safe, lines := map[uint64]bool{}, map[uint64]bool{}
	var past, cached, read uint64
	for range 500 {
		off, n := r.Uint64N(64<<10), r.Uint64N(600)
		what, touched := r.IntN(5), uint64(0)
		each(off, n, func(block uint64) {
			touched++
			switch {
			case what == 0, what == 2 && !c.DDIO:
				past++
				safe[block], lines[block/blocks] = true, true
			case what == 1, what == 2:
				cached++
				safe[block], lines[block/blocks] = false, true
			case what == 3 && lines[block/blocks]:
				safe[block] = true
			case what == 4:
				read++
			}
		})
		if least := (n + unit - 1) / unit; touched < least || touched > least+1 || n == 0 && touched > 0 {
			t.Errorf("%d bytes at %d touch %d blocks", n, off, touched)
		}
		switch what {
		case 0:
			d.Write(off, n)
		case 1:
			d.Store(off, n)
		case 2:
			d.DMA(off, n)
		case 3:
			d.Flush(off, n)
		case 4:
			d.Read(off, n)
			if n > 0 {
				read++
				if again := d.Read(off+n-1, 1); again != 0 {
					t.Errorf("what was just read has a latency of %v", again)
				}
			}
		}
		all := uint64(len(d.cache.blocks))
		if all > uint64(c.CacheLines) || all != uint64(len(d.cache.at)) {
			t.Errorf("the caches have %d blocks, and places for %d", all, len(d.cache.at))
		}
	}
	for block, is := range safe {
		if got := d.Survives(block*unit+r.Uint64N(unit), 1); is && !got || c.EADR && !got {
			t.Errorf("block %d does not survive", block)
		} else if got && !is && d.cache.has(block) && !c.EADR {
			t.Errorf("block %d survives in a cache", block)
		}
	}
	d.PowerOff()
	var sum DIMM
	for i, m := range d.Counters() {
		sum.MediaReads, sum.MediaWrites = sum.MediaReads+m.MediaReads, sum.MediaWrites+m.MediaWrites
		sum.ReadRequests, sum.WriteRequests = sum.ReadRequests+m.ReadRequests, sum.WriteRequests+m.WriteRequests
		if m.MediaWrites%blocks != 0 || m.MediaWrites > blocks*m.WriteRequests || m.TotalMediaWrites != m.MediaWrites ||
			m.TotalWriteRequests != m.WriteRequests || m.MediaReads > blocks*m.ReadRequests+m.MediaWrites {
			t.Errorf("module %d counts %+v", i, m)
		}
	}
	needed := uint64(len(lines)) // that the media has to write at least; without EADR the caches' last blocks are lost
	if !c.EADR {
		needed -= min(needed, uint64(c.CacheLines))
	}
	if sum.MediaWrites < blocks*needed {
		t.Errorf("%d blocks of media for %d lines", sum.MediaWrites, needed)
	}
	if sum.WriteRequests < past || sum.WriteRequests > past+cached || sum.ReadRequests > read {
		t.Errorf("%d writes and %d reads of %d, %d and %d blocks", sum.WriteRequests, sum.ReadRequests, past,
			cached, read)
	}
	if d.Busy() == 0 || dlwa(d.Counters()) < float64(needed)*blocks/float64(past+cached) {
		t.Errorf("busy for %v, DLWA %.2f", d.Busy(), dlwa(d.Counters()))
	}
}

// TestCombining says what a module's buffer does, write by write.
func TestCombining(t *testing.T) {
	c := Testbed()
	c.DIMMs, c.Lines, c.Combining = 1, 4, 2
	for _, tt := range []struct {
		name                string
		do                  func(d *Device)
		media, reads, wants uint64 // blocks written and read of the media, and requests
	}{
		{"nothing", func(*Device) {}, 0, 0, 0},
		{"a byte is a request, and writes a line that was read", func(d *Device) { d.Write(70, 1) }, 4, 4, 1},
		{"a whole line needs no reading", func(d *Device) { d.Write(0, 256) }, 4, 0, 4},
		{"a complete line takes writes again", func(d *Device) { d.Write(0, 256); d.Write(0, 256) }, 4, 0, 8},
		{"two logs fit", func(d *Device) {
			for i := range uint64(4) {
				d.Write(i*64, 64)
				d.Write(1<<20+i*64, 64)
			}
		}, 8, 0, 8},
		{"three do not", func(d *Device) {
			for i := range uint64(4) {
				for log := range uint64(3) {
					d.Write(log<<20+i*64, 64)
				}
			}
		}, 48, 48, 12},
		{"the line that was written least recently goes", func(d *Device) {
			d.Write(0, 64)
			d.Write(256, 64)
			d.Write(0, 64)
			d.Write(512, 64)
			d.Write(64, 192)
		}, 12, 8, 7},
		{"stores are lost without a flush", func(d *Device) { d.Store(0, 256) }, 0, 0, 0},
		{"unless the caches survive, too", func(d *Device) { d.c.EADR = true; d.Store(0, 256) }, 4, 0, 4},
		{"and not with one", func(d *Device) { d.Store(0, 256); d.Flush(0, 256) }, 4, 0, 4},
		{"a write past the caches is the last word",
			func(d *Device) { d.Store(0, 64); d.Write(0, 256); d.Flush(0, 64) }, 4, 0, 4},
	} {
		d := NewDevice(c)
		tt.do(d)
		d.PowerOff()
		m := d.Counters()[0]
		if m.MediaWrites != tt.media || m.MediaReads != tt.reads || m.WriteRequests != tt.wants {
			t.Errorf("%s: media writes %d, reads %d, requests %d, want %d, %d, %d", tt.name, m.MediaWrites,
				m.MediaReads, m.WriteRequests,
				tt.media, tt.reads, tt.wants)
		}
	}
}

// TestDDIO has an RNIC write one log. With DDIO, what it wrote is lost without EADR, and with EADR
// it is amplified, since the caches evict in no order (Rowan 2.2).
func TestDDIO(t *testing.T) {
	for _, tt := range []struct {
		ddio, eadr, survives bool
		least, most          float64
	}{{false, false, true, 1, 1.1}, {true, true, true, 3, 4}, {true, false, false, 3, 4}} {
		c := Testbed()
		c.DDIO, c.EADR, c.CacheLines = tt.ddio, tt.eadr, 4<<10
		d := NewDevice(c)
		for off := uint64(0); off < 4<<20; off += 64 {
			d.DMA(off, 64)
		}
		if got := d.Survives(0, 4<<20); got != tt.survives {
			t.Errorf("DDIO %v, EADR %v: it survives: %v", tt.ddio, tt.eadr, got)
		}
		d.PowerOff()
		if got := dlwa(d.Counters()); got < tt.least || got > tt.most {
			t.Errorf("DDIO %v: DLWA %.2f, want %.1f to %.1f", tt.ddio, got, tt.least, tt.most)
		}
		if d.Read(1<<30, 64) != c.ReadLatency || d.Read(1<<30+64, 64) != 0 {
			t.Error("the media's latency is not that of a line's first read")
		}
	}
}

// TestTaken: modules that are idle take at once what fits into their queues, and what comes behind
// at their media's rates.
func TestTaken(t *testing.T) {
	c := Testbed()
	c.DIMMs = 1
	d := NewDevice(c)
	now := time.Second
	for i := range uint64(c.Queue) {
		d.Write(i<<20, 64)
		if got := d.Taken(now, i<<20, 64); got != now {
			t.Fatalf("block %d is taken after %v", i, got-now)
		}
	}
	const lines = 10_000
	for _, x := range []struct {
		what string
		do   func(off uint64)
		each float64 // ns
	}{
		{"whole lines", func(off uint64) { d.Write(off, LineBytes) }, LineBytes / 2.0},
		{"blocks", func(off uint64) { d.Write(off, 64) }, LineBytes/2.0 + LineBytes/6.0},
		{"READs", func(off uint64) { d.Read(off, LineBytes) }, LineBytes / 6.0},
	} {
		from := now
		for i := range uint64(lines) {
			x.do(i << 20)
			now = d.Taken(now, i<<20, LineBytes)
		}
		if got := float64(now-from) / lines; got < 0.95*x.each || got > 1.05*x.each {
			t.Errorf("%s take %.1f ns each, want %.1f", x.what, got, x.each)
		}
	}
}

// BenchmarkDevice is what the model costs a WRITE of 64 bytes, of 144 streams.
func BenchmarkDevice(b *testing.B) {
	d := NewDevice(Testbed())
	for i := range uint64(b.N) {
		d.DMA((i%144)<<20+i%144*85&^63+i/144*64, 64)
	}
}

// dlwa is the device-level write amplification since the modules' counters were 0; 0: nothing was
// written.
func dlwa(all []DIMM) float64 {
	var media, requests uint64
	for _, d := range all {
		media += d.MediaWrites
		requests += d.WriteRequests
	}
	if requests == 0 {
		return 0
	}
	return float64(media) / float64(requests)
}
