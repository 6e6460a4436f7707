package telemetry

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"pgregory.net/rapid"
)

// someProcess draws a process with as many counters and buckets as fill says, up to 1.
func someProcess(r *rand.Rand, fill float64) *Process {
	p := &Process{
		Host: "host.example", PID: int(r.Int32()), Name: "go-ycsb", Began: time.UnixMicro(r.Int64N(1 << 50)).UTC(),
		At: time.UnixMicro(r.Int64N(1 << 50)).UTC(), Workers: r.IntN(1000), Oldest: time.Duration(r.Int64N(1 << 40)),
		Calls: r.Uint64(),
	}
	for i := range p.Ops {
		p.Ops[i] = Ops{r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64(), nil}
		h := new(Histogram)
		for range int(fill * buckets) {
			h.add(r.IntN(buckets), 1+r.Uint64N(1<<r.IntN(40)))
		}
		if h.n > 0 {
			p.Ops[i].Latency = h
		}
	}
	for i := range int(fill * maxNodes) {
		p.Nodes = append(p.Nodes, NodeCounts{i, r.Uint64(), r.Uint64(), r.Uint64(), 1, r.Uint64(), r.Uint64(),
			r.Uint64()})
	}
	for range int(fill * maxOwn) {
		p.Own = append(p.Own, Counter{strings.Repeat("slow path ", 6), r.Uint64()})
	}
	return p
}

// TestProcessRoundTrip: what fits comes back as it was.
func TestProcessRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		p := someProcess(r, rapid.Float64Range(0, 0.05).Draw(t, "fill"))
		got, err := decodeProcess(appendProcess(nil, p, 1<<20))
		if err != nil || !reflect.DeepEqual(got, p) {
			t.Fatalf("%v:\n%+v\n%+v", err, got, p)
		}
	})
}

// TestProcessFits: whatever a process has counted fits into a half of a record. Operations are all
// there, and percentiles are not far off.
func TestProcessFits(t *testing.T) {
	for _, fill := range []float64{0, 0.01, 0.1, 0.5, 1} {
		p := someProcess(rand.New(rand.NewPCG(1, 1)), fill)
		text := appendProcess(nil, p, halfMost)
		if len(text) > halfMost {
			t.Fatalf("filled to %v: %d bytes, want %d at most", fill, len(text), halfMost)
		}
		got, err := decodeProcess(text)
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.Ops {
			is, was := got.Ops[i].Latency, p.Ops[i].Latency
			if got.Ops[i].OK != p.Ops[i].OK || (is == nil) != (was == nil) {
				t.Fatalf("filled to %v: %+v", fill, got.Ops[i])
			}
			if was == nil {
				continue
			}
			if is.n != was.n || is.min != was.min || is.max != was.max || is.sum != was.sum {
				t.Errorf("filled to %v: count %d of %d, %v to %v", fill, is.n, was.n, is.min, is.max)
			}
			for _, q := range []float64{50, 99, 99.9} {
				a, b := bucket(is.Percentile(q)), bucket(was.Percentile(q))
				if b-a > 64 || a-b > 64 { // 16 neighbours merged, and the rank between two of them
					t.Errorf("filled to %v: the %v-th percentile is %v, of %v", fill, q, is.Percentile(q),
						was.Percentile(q))
				}
			}
		}
		t.Logf("filled to %v: %d bytes", fill, len(text))
	}
}

// TestTextsAreClean: what a terminal would take for orders is left out, on both ways.
func TestTextsAreClean(t *testing.T) {
	const bad = "a\x1b[31mb\nc\x00\u202e\u200b\xff"
	p, err := decodeProcess(appendProcess(nil, &Process{Host: bad, Name: strings.Repeat("ä", maxName)}, halfMost))
	if err != nil || p.Host != "a[31mbc" || p.Name != strings.Repeat("ä", maxName/2) {
		t.Errorf("%q, %q, %v", p.Host, p.Name, err)
	}
	raw := append([]byte{encoding, byte(len(bad))}, bad...)
	d := decoder{p: raw}
	d.version()
	if s := d.text(maxName); s != "a[31mbc" || d.err != nil {
		t.Errorf("%q, %v", s, d.err)
	}
}

// FuzzDecode: bytes of strangers are a process within bounds, or an error; one that was read is
// written and read as the same.
func FuzzDecode(f *testing.F) {
	for i, fill := range []float64{0, 0.01, 0.1} {
		f.Add(appendProcess(nil, someProcess(rand.New(rand.NewPCG(uint64(i), 2)), fill), halfMost))
	}
	f.Add(appendEvent(nil, &Event{At: time.UnixMicro(1).UTC(), What: "expelled", Node: 2, Text: "node 2 is gone"}))
	f.Add([]byte{2})
	f.Add([]byte(nil))
	printable := func(t *testing.T, most int, s string) {
		if len(s) > most || strings.ContainsFunc(s,
			func(r rune) bool { return unicode.IsControl(r) || !unicode.IsPrint(r) }) {
			t.Fatalf("%q was read", s)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := decodeEvent(b); err == nil {
			printable(t, maxName, e.What)
			printable(t, maxText, e.Text)
			if again, err := decodeEvent(appendEvent(nil, &e)); err != nil || again != e {
				t.Fatalf("%+v is read as %+v (%v)", e, again, err)
			}
		}
		p, err := decodeProcess(b)
		if err != nil {
			return
		}
		printable(t, maxName, p.Host)
		printable(t, maxName, p.Name)
		for _, c := range p.Own {
			printable(t, maxName, c.Name)
		}
		if len(p.Own) > maxOwn || len(p.Nodes) > maxNodes || p.Workers < 0 || p.Oldest < 0 {
			t.Fatalf("%+v", p)
		}
		for _, o := range p.Ops {
			if o.Latency != nil {
				o.Latency.Percentile(99)
			}
		}
		if again, err := decodeProcess(appendProcess(nil, p, 1<<20)); err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("%+v is read as %+v (%v)", p, again, err)
		}
	})
}
