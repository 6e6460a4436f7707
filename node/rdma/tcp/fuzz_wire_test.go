package tcp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// FuzzWire reads arbitrary bytes as one of the wire's parts, writes down what it understood, and
// finds the same when it reads that again.
func FuzzWire(f *testing.F) {
	f.Add(frame(kindVerbs, 3, 7, []byte{1, 2, 3, 4, 5, 6, 7, 8}))
	f.Add(rights{1, 2, 3, 4, 5}.faa(8)[rightsBytes:])
	f.Add(appendVerb(nil, &rdma.Op{Verb: rdma.Write, Buf: []byte("eleven byte")}, 16, 0, 11))
	f.Add(appendVerb(nil, &rdma.Op{Verb: rdma.Read}, 16, 0, 8))
	f.Add(appendVerb(nil, &rdma.Op{Verb: rdma.MaskedCompareSwap, Expect: 1, Value: 2, CompareMask: 3, SwapMask: 4}, 16,
		0, 8))
	f.Add(appendVerb(nil, &rdma.Op{Verb: rdma.CompareSwap, Expect: 1, Value: 2}, 1<<47, 0, 8))
	f.Add(rights{}.appends(9, "eleven byte")[rightsBytes:])
	f.Add(appendBreach(nil))
	f.Add(appendSend(nil, &rdma.Op{Verb: rdma.Send, Addr: rdma.At(0, 7), Buf: []byte("eleven byte"),
		Spans: []rdma.Span{{Addr: 8, Len: 9}}}, 5))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= headerBytes {
			if h, err := parseHeader(p, maxBody); err == nil {
				var again [headerBytes]byte
				h.put(again[:])
				if !bytes.Equal(again[:], p[:headerBytes]) || h.body > maxBody {
					t.Errorf("header %x is read as %+v, and written as %x", p[:headerBytes], h, again)
				}
			}
		}
		q, rest, err := parseVerb(p)
		if err != nil {
			return
		}
		if q.n > maxData || len(rest) > len(p)-opBytes || len(q.data) > 0 && len(q.data) != q.n {
			t.Fatalf("%x is read as %+v with %d bytes behind it", p, q, len(rest))
		}
		op := &rdma.Op{
			Verb: q.verb, Buf: q.data, Expect: q.expect, Value: q.value, CompareMask: q.compare, SwapMask: q.swap,
		}
		again := appendVerb(nil, op, q.off, 0, q.n)
		if q.verb == rdma.Send {
			if q.off > rdma.MaxBox {
				return // no mailbox
			}
			op.Addr, op.Buf = rdma.At(0, q.off), append([]byte{}, q.data...)
			again = append(appendSend(nil, op, q.from), q.spans...)
			binary.LittleEndian.PutUint32(again[opBytes+4:], uint32(len(q.spans)/spanBytes))
			if len(q.spans) > maxSpans*spanBytes || len(q.spans)%spanBytes != 0 {
				t.Fatalf("%x is read as a SEND that gathers %d bytes of pieces", p, len(q.spans))
			}
		}
		twice, behind, err := parseVerb(again)
		if err != nil || len(behind) > 0 || !same(&q, &twice) {
			t.Errorf("%+v, written and read again: %+v, %d bytes behind it, %v", q, twice, len(behind), err)
		}
	})
}

func same(a, b *request) bool {
	return a.verb == b.verb && a.off == b.off && a.n == b.n && a.expect == b.expect && a.value == b.value &&
		a.compare == b.compare && a.swap == b.swap && bytes.Equal(a.data, b.data) &&
		a.from == b.from && bytes.Equal(a.spans, b.spans)
}
