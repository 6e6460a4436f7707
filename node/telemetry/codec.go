package telemetry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a record holds. An encoder cuts what is longer, a decoder refuses it.
const (
	maxName   = 64  // bytes of a host's, a program's or a counter's name
	maxText   = 320 // bytes of an event's text
	maxNodes  = 256
	maxOwn    = 64
	encoding  = 1  // version of the encoding of processes and of events
	mostMerge = 12 // all of a histogram is two buckets
	fineMerge = 4  // percentiles are within 13 % yet
	fewNodes  = 16
)

// ErrEncoding is wrapped when bytes are no process, or no event, that this program can read.
var ErrEncoding = errors.New("bad encoding of telemetry")

// appendProcess appends p as compact bytes, most at most: a version, and numbers as varints; of
// histograms the buckets that counted anything, by the distance from the one before. Where that is
// too long, neighbouring buckets of histograms are merged, pairwise, up to 16 of them; then
// counters of the store's own and of nodes are left out, the last ones first; then further buckets
// are merged.
func appendProcess(dst []byte, p *Process, most int) []byte {
	own, nodes := p.Own[:min(len(p.Own), maxOwn)], p.Nodes[:min(len(p.Nodes), maxNodes)]
	for merge := 0; ; {
		e := encoder{dst}
		e.process(p, own, nodes, merge)
		switch {
		case len(e.p)-len(dst) <= most:
			return e.p
		case merge < fineMerge:
			merge++
		case len(own) > 0:
			own = own[:len(own)/2]
		case len(nodes) > fewNodes:
			nodes = nodes[:len(nodes)/2]
		case merge < mostMerge:
			merge++
		default:
			return dst // not with these bounds: fewNodes and two buckets a histogram fit
		}
	}
}

type encoder struct{ p []byte }

func (e *encoder) uint(v uint64) { e.p = binary.AppendUvarint(e.p, v) }
func (e *encoder) int(v int64)   { e.p = binary.AppendVarint(e.p, v) }

func (e *encoder) text(s string, most int) {
	s = clean(s)
	for len(s) > most {
		_, n := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-n]
	}
	e.uint(uint64(len(s)))
	e.p = append(e.p, s...)
}

// time writes a time to the microsecond, 0 for none.
func (e *encoder) time(t time.Time) {
	if t.IsZero() {
		e.int(0)
		return
	}
	e.int(max(t.UnixMicro(), 0))
}

func (e *encoder) process(p *Process, own []Counter, nodes []NodeCounts, merge int) {
	e.p = append(e.p, encoding)
	e.text(p.Host, maxName)
	e.uint(uint64(max(p.PID, 0)))
	e.text(p.Name, maxName)
	e.time(p.Began)
	e.time(p.At)
	e.uint(uint64(max(p.Workers, 0)))
	e.uint(uint64(max(p.Oldest, 0)))
	e.uint(uint64(len(p.Ops)))
	for i := range p.Ops {
		o := &p.Ops[i]
		for _, v := range [...]uint64{o.OK, o.Failed, o.Unknown, o.Trips} {
			e.uint(v)
		}
		e.histogram(o.Latency, merge)
	}
	e.uint(uint64(len(nodes)))
	for _, n := range nodes {
		for _, v := range [...]uint64{uint64(max(n.Node, 0)), n.Reads, n.Writes, n.Atomics, n.Calls, n.BytesRead,
			n.BytesWrote,
			n.Doorbells} {
			e.uint(v)
		}
	}
	e.uint(p.Calls)
	e.uint(uint64(len(own)))
	for _, c := range own {
		e.text(c.Name, maxName)
		e.uint(c.Count)
	}
}

// histogram writes how many buckets follow, plus one; 0 for none. 2^merge neighbours are one of
// them.
func (e *encoder) histogram(h *Histogram, merge int) {
	if h == nil || h.n == 0 {
		e.uint(0)
		return
	}
	e.uint(h.merged(merge, func(int, uint64) {}) + 1)
	e.uint(uint64(merge))
	e.p = binary.LittleEndian.AppendUint64(e.p, math.Float64bits(h.sum))
	e.uint(uint64(max(h.min, 0)))
	e.uint(uint64(max(h.max, 0)))
	last := -1
	h.merged(merge, func(i int, n uint64) {
		e.uint(uint64(i - last - 1))
		e.uint(n)
		last = i
	})
}

// merged yields the buckets that counted anything, where 2^merge neighbours are one, and returns
// how many they are.
func (h *Histogram) merged(merge int, yield func(i int, n uint64)) (used uint64) {
	first, end := h.span()
	for i := first; i < end; {
		at, n := i>>merge, uint64(0)
		for ; i < end && i>>merge == at; i++ {
			n += h.counts[i]
		}
		if n > 0 {
			used++
			yield(at, n)
		}
	}
	return used
}

// decodeProcess reads what appendProcess wrote. It trusts none of it.
func decodeProcess(b []byte) (*Process, error) {
	d := decoder{p: b}
	p := new(Process)
	d.version()
	p.Host = d.text(maxName)
	p.PID = d.int(math.MaxInt32)
	p.Name = d.text(maxName)
	p.Began, p.At = d.time(), d.time()
	p.Workers = d.int(math.MaxInt32)
	p.Oldest = d.duration()
	if d.int(len(p.Ops)) != len(p.Ops) {
		d.bad("other kinds of operations")
	}
	for i := range p.Ops {
		o := &p.Ops[i]
		for _, v := range [...]*uint64{&o.OK, &o.Failed, &o.Unknown, &o.Trips} {
			*v = d.uint()
		}
		o.Latency = d.histogram()
	}
	for range d.int(maxNodes) {
		n := NodeCounts{Node: d.int(math.MaxInt32)}
		for _, v := range [...]*uint64{&n.Reads, &n.Writes, &n.Atomics, &n.Calls, &n.BytesRead, &n.BytesWrote,
			&n.Doorbells} {
			*v = d.uint()
		}
		p.Nodes = append(p.Nodes, n)
	}
	p.Calls = d.uint()
	for range d.int(maxOwn) {
		p.Own = append(p.Own, Counter{d.text(maxName), d.uint()})
	}
	return p, d.end()
}

// decoder reads bytes of strangers. Behind the first thing that is wrong it answers zeros, and end
// says what it was.
type decoder struct {
	p   []byte
	err error
}

func (d *decoder) bad(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrEncoding, what)
	}
	d.p = nil
}

func (d *decoder) end() error {
	if len(d.p) > 0 {
		d.bad(fmt.Sprintf("%d bytes behind the end", len(d.p)))
	}
	return d.err
}

func (d *decoder) version() {
	if len(d.p) == 0 || d.p[0] != encoding {
		d.bad("of another version")
		return
	}
	d.p = d.p[1:]
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.p)
	if n <= 0 {
		d.bad("a number is missing")
		return 0
	}
	d.p = d.p[n:]
	return v
}

// int reads a number of at most most.
func (d *decoder) int(most int) int {
	v := d.uint()
	if v > uint64(most) {
		d.bad(fmt.Sprintf("%d, where %d is the most", v, most))
		return 0
	}
	return int(v)
}

func (d *decoder) duration() time.Duration { return time.Duration(d.int(math.MaxInt64)) }

func (d *decoder) time() time.Time {
	v, n := binary.Varint(d.p)
	const most = 1 << 53 // microseconds: the year 2255
	if n <= 0 || v > most || v < 0 {
		d.bad("no time")
		return time.Time{}
	}
	d.p = d.p[n:]
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMicro(v).UTC()
}

func (d *decoder) text(most int) string {
	n := d.int(most)
	if n > len(d.p) {
		d.bad("a text is cut")
		return ""
	}
	s := string(d.p[:n])
	d.p = d.p[n:]
	return clean(s)
}

// clean keeps what could change the state of a terminal, or what is seen around it, out of a text.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) && r != utf8.RuneError {
			return r
		}
		return -1
	}, s)
}

func (d *decoder) histogram() *Histogram {
	used := d.int(buckets + 1)
	if used == 0 {
		return nil
	}
	merge := d.int(mostMerge)
	if len(d.p) < 8 {
		d.bad("a histogram is cut")
		return nil
	}
	h := &Histogram{sum: math.Float64frombits(binary.LittleEndian.Uint64(d.p))}
	d.p = d.p[8:]
	h.min, h.max = d.duration(), d.duration()
	if h.min > h.max || !(h.sum >= 0) || math.IsInf(h.sum, 0) {
		d.bad("a histogram without a range")
	}
	first, last := bucket(h.min), bucket(h.max)
	for at := 0; used > 1 && d.err == nil; used-- {
		at += d.int(buckets)
		i := at<<merge + 1<<merge/2
		n := d.uint()
		if at<<merge >= buckets || n == 0 || h.n+n < n {
			d.bad("a histogram with more than there are")
			return nil
		}
		h.counts[min(max(i, first), last)] += n // the middle of merged ones may lie beyond
		h.n += n
		at++
	}
	if d.err != nil || h.n == 0 {
		d.bad("an empty histogram")
		return nil
	}
	return h
}

// appendEvent appends e as compact bytes: see appendProcess.
func appendEvent(dst []byte, ev *Event) []byte {
	e := encoder{append(dst, encoding)}
	e.time(ev.At)
	e.text(ev.What, maxName)
	e.uint(ev.Tenure)
	e.uint(ev.Epoch)
	e.int(int64(max(ev.Node, -1)))
	e.uint(uint64(max(ev.Client, 0)))
	e.uint(uint64(max(ev.Took, 0)))
	e.text(ev.Text, maxText)
	return e.p
}

// decodeEvent reads what appendEvent wrote. It trusts none of it.
func decodeEvent(b []byte) (ev Event, err error) {
	d := decoder{p: b}
	d.version()
	ev.At = d.time()
	ev.What = d.text(maxName)
	ev.Tenure, ev.Epoch = d.uint(), d.uint()
	n, k := binary.Varint(d.p)
	if k <= 0 || n < -1 || n > math.MaxInt32 {
		d.bad("no node")
	} else {
		d.p = d.p[k:]
	}
	ev.Node = int(n)
	ev.Client = d.int(math.MaxInt32)
	ev.Took = d.duration()
	ev.Text = d.text(maxText)
	return ev, d.end()
}
