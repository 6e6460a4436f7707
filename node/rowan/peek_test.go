package rowan_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// peeker is a table that is looked into while its receiver runs.
type peeker struct {
	t      *testing.T
	o      rowan.Options
	ep     rdma.Endpoint
	table  *rowan.Table
	r      *rowan.Receiver
	others *rowan.Sender
}

// want expects entries in the segments that are not free, beside those of kind 1.
func (p *peeker) want(when string, want ...string) {
	p.t.Helper()
	var found []string
	for _, seg := range p.table.Held() {
		for _, e := range p.peek(seg) {
			if e[0] != '1' {
				found = append(found, e)
			}
		}
	}
	slices.Sort(found)
	if !slices.Equal(found, want) {
		p.t.Errorf("%s: %q, want %q", when, found, want)
	}
}

// peek returns what is seen in a segment.
func (p *peeker) peek(seg rowan.Segment) (found []string) {
	p.t.Helper()
	err := p.table.Peek(p.ep, seg, make([]byte, p.o.SegmentBytes), func(kind uint8, data []byte, at rdma.Addr) {
		found = append(found, fmt.Sprintf("%d with %d", kind, len(data)))
		if p.table.At(at) != seg.Index {
			p.t.Errorf("an entry of segment %d is at %s", seg.Index, at)
		}
	})
	must(p.t, err)
	return found
}

// run appends other entries until so many segments are used, and gives all back.
func (p *peeker) run(segments int) {
	p.t.Helper()
	for used := 0; used < segments; {
		must(p.t, p.others.Append(1, make([]byte, 200), patience))
		must(p.t, p.r.Step())
		for seg, ok := p.r.Next(); ok; seg, ok = p.r.Next() {
			must(p.t, p.r.Digest(seg, func(*rowan.Entry) error { return nil }))
			p.r.Free(seg)
			used++
		}
	}
	must(p.t, p.r.Step())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestPeek: whatever is in a segment that is not free is seen, whole or not, digested or not; what
// was in its earlier uses is not.
func TestPeek(t *testing.T) {
	o := rowan.Options{
		Ring: 2, Segments: 8, SegmentBytes: 1024, Ahead: 3, Own: 2, Sources: 3, Credit: noCredit, Secret: secret,
	}
	f := newMem(t, o, mtu)
	p := &peeker{t: t, o: o, ep: open(t, f, "receiver")}
	sender := open(t, f, "sender")
	var err error
	p.table, err = rowan.OpenTable(p.ep, o)
	must(t, err)
	p.r, err = p.table.Receiver(p.ep)
	must(t, err)
	must(t, p.r.Step())
	first, err := rowan.NewSender(sender, senderOptions(o, 0))
	must(t, err)
	p.others, err = rowan.NewSender(sender, senderOptions(o, 1))
	must(t, err)

	must(t, first.Append(2, make([]byte, 100), patience))
	must(t, first.Append(3, make([]byte, 600), patience))
	p.want("in the ring", "2 with 100", "3 with 232")
	for range 2 * o.Segments {
		p.run(1)
		p.want("digested, and freed")
	}

	begun := rowan.Seal(mtu, secret, rdma.RingAt(0, 2), 4, 2, 7, make([]byte, 300))
	appendRaw(t, sender, begun[:mtu])
	p.run(2 * o.Segments)
	p.want("begun", "4 with 232")

	log := p.table.Log(p.ep, 1)
	must(t, log.Reserve(900, 0))
	b := p.ep.Batch()
	log.Add(b, 5, 1, make([]byte, 900))
	must(t, rdma.Do(p.ep, b, patience))
	b.Release()
	p.want("in a log", "4 with 232", "5 with 900")
	must(t, log.Reserve(900, 0))
	seg, ok := log.Full()
	if !ok {
		t.Fatal("no segment is full")
	}
	must(t, p.table.Release(p.ep, []rowan.Segment{seg}))
	p.want("freed", "4 with 232")
	if found := p.peek(seg); found != nil {
		t.Errorf("%q is in a free segment", found)
	}
	must(t, p.r.Close())
}
