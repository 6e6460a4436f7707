package ibverbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// rowanLog has segments that its streams use several times.
func rowanLog(streams int) rowan.Options {
	return rowan.Options{
		Ring: 3, Base: rdma.Stride, Segments: 48, SegmentBytes: 16 << 10, Ahead: 40, Sources: 3,
		Credit: 32 << 10, Streams: streams, Secret: 77,
	}
}

// rowanEntry is the i-th of a source: its lengths are of all streams, and of several blocks.
func rowanEntry(source, i int) []byte {
	lengths := [...]int{16, 100, 30, 300, 900, 20, 1500, 9000, 200}
	p := fillWith(make([]byte, lengths[(i+source)%len(lengths)]), byte(i))
	binary.LittleEndian.PutUint64(p, uint64(i))
	p[8] = byte(source)
	return p
}

// TestRowan has senders append to a log over a ring of several streams, while its receiver digests
// and frees segments. Then another one recovers the rest. All entries are found, whole, and of each
// source in order within each stream.
func TestRowan(t *testing.T) {
	const sources, each = 3, 600
	p := newPool(t, shape{nodes: 1, memory: 2 << 20})
	ep := worker(t, p.Fabric)
	promises, err := rdma.Rings(ep)
	if err != nil {
		t.Fatal(err)
	}
	o := rowanLog(promises.Streams)
	done := make(chan error, sources)
	for s := range sources {
		from := worker(t, p.Fabric)
		go func() { done <- appendAll(from, o, s, each) }()
	}
	seen := map[[2]int]bool{}
	last := map[[2]int]uint64{}
	freed := 0
	digest := func(ordered bool) func(e *rowan.Entry) error {
		return func(e *rowan.Entry) error {
			i, s := int(binary.LittleEndian.Uint64(e.Data)), int(e.Source)
			if !bytes.Equal(e.Data, rowanEntry(s, i)) {
				t.Errorf("entry %d of source %d is another", i, s)
			}
			k := [2]int{s, promises.Stream(len(e.Data) + len(e.Blocks)*rowan.HeaderBytes)}
			if ordered && e.Stamp <= last[k] {
				t.Errorf("stamp %d of source %d, stream %d behind %d", e.Stamp, k[0], k[1], last[k])
			}
			last[k], seen[[2]int{s, i}] = e.Stamp, true
			return nil
		}
	}
	r, err := rowan.Open(ep, o)
	if err == nil {
		_, err = r.Recover(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	for running := sources; running > 0; ep.Sleep(100 * time.Microsecond) {
		select {
		case err := <-done:
			if running--; err != nil {
				t.Error(err)
			}
		default:
		}
		if err := r.Step(); err != nil {
			t.Fatal(err)
		}
		for seg, ok := r.Next(); ok; seg, ok = r.Next() {
			if err := r.Digest(seg, digest(true)); err != nil {
				t.Fatal(err)
			}
			r.Free(seg)
			freed++
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := rowan.Open(ep, o)
	if err == nil {
		clear(last)
		_, err = again.Recover(func(_ rowan.Segment, e *rowan.Entry) error { return digest(false)(e) })
	}
	if err != nil {
		t.Fatal(err)
	}
	for s := range sources {
		for i := range each {
			if !seen[[2]int{s, i}] {
				t.Errorf("entry %d of source %d is lost", i, s)
			}
		}
	}
	if freed < o.Segments {
		t.Errorf("%d segments were freed, and no segment may have been used twice", freed)
	}
}

func appendAll(ep *Endpoint, o rowan.Options, source, n int) error {
	s, err := rowan.NewSender(ep, rowan.SenderOptions{Log: o, Source: uint16(source)})
	for i := 0; i < n && err == nil; i++ {
		err = s.Append(1, rowanEntry(source, i), testPatience)
	}
	return err
}

// TestRowanStreams opens a log of one stream where the ring has several.
func TestRowanStreams(t *testing.T) {
	p := newPool(t, shape{nodes: 1, memory: 2 << 20})
	ep := worker(t, p.Fabric)
	_, err := rowan.Open(ep, rowanLog(1))
	if _, serr := rowan.NewSender(ep, rowan.SenderOptions{Log: rowanLog(1)}); !errors.Is(err, rdma.ErrAccess) ||
		!errors.Is(serr, rdma.ErrAccess) {
		t.Errorf("a log of one stream on a ring of several: %v, %v", err, serr)
	}
}
