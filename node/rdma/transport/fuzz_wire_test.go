package transport

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// FuzzWire reads arbitrary bytes as one of the wire's parts, writes down what it understood, and
// finds the same when it reads that again.
func FuzzWire(f *testing.F) {
	head := make([]byte, HeaderBytes)
	Header{Body: 8, Kind: KindVerbs, Items: 3, Tag: 7}.Put(head)
	f.Add(append(head, 1, 2, 3, 4, 5, 6, 7, 8))
	f.Add(AppendVerb(nil, &rdma.Op{Verb: rdma.FetchAdd, Value: 1}, 8, 0, 8))
	f.Add(AppendVerb(nil, &rdma.Op{Verb: rdma.Write, Buf: []byte("eleven byte")}, 16, 0, 11))
	f.Add(AppendVerb(nil, &rdma.Op{Verb: rdma.Read}, 16, 0, 8))
	f.Add(AppendVerb(nil, &rdma.Op{Verb: rdma.MaskedCompareSwap, Expect: 1, Value: 2, CompareMask: 3, SwapMask: 4}, 16,
		0, 8))
	f.Add(AppendVerb(nil, &rdma.Op{Verb: rdma.CompareSwap, Expect: 1, Value: 2}, 1<<47, 0, 8))
	f.Add(AppendVerb(nil, &rdma.Op{Verb: rdma.Append, Buf: []byte("eleven byte")}, 9, 0, 11))
	f.Add(AppendBreach(nil))
	f.Add(AppendSend(nil, &rdma.Op{Verb: rdma.Send, Addr: rdma.At(0, 7), Buf: []byte("eleven byte"),
		Spans: []rdma.Span{{Addr: 8, Len: 9}}}, 5))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) >= HeaderBytes {
			if h, err := ParseHeader(p, MaxBody); err == nil {
				var again [HeaderBytes]byte
				h.Put(again[:])
				if !bytes.Equal(again[:], p[:HeaderBytes]) || h.Body > MaxBody {
					t.Errorf("header %x is read as %+v, and written as %x", p[:HeaderBytes], h, again)
				}
			}
		}
		q, rest, err := ParseVerb(p)
		if err != nil {
			return
		}
		if q.N > MaxData || len(rest) > len(p)-OpBytes || len(q.Data) > 0 && len(q.Data) != q.N {
			t.Fatalf("%x is read as %+v with %d bytes behind it", p, q, len(rest))
		}
		op := &rdma.Op{
			Verb: q.Verb, Buf: q.Data, Expect: q.Expect, Value: q.Value, CompareMask: q.Compare, SwapMask: q.Swap,
		}
		again := AppendVerb(nil, op, q.Off, 0, q.N)
		if q.Verb == rdma.Send {
			if q.Off > rdma.MaxBox {
				return // no mailbox
			}
			op.Addr, op.Buf = rdma.At(0, q.Off), append([]byte{}, q.Data...)
			again = append(AppendSend(nil, op, q.From), q.Spans...)
			binary.LittleEndian.PutUint32(again[OpBytes+4:], uint32(len(q.Spans)/SpanBytes))
			if len(q.Spans) > MaxSpans*SpanBytes || len(q.Spans)%SpanBytes != 0 {
				t.Fatalf("%x is read as a SEND that gathers %d bytes of pieces", p, len(q.Spans))
			}
		}
		twice, behind, err := ParseVerb(again)
		if err != nil || len(behind) > 0 || !same(&q, &twice) {
			t.Errorf("%+v, written and read again: %+v, %d bytes behind it, %v", q, twice, len(behind), err)
		}
	})
}

func same(a, b *Request) bool {
	return a.Verb == b.Verb && a.Off == b.Off && a.N == b.N && a.Expect == b.Expect && a.Value == b.Value &&
		a.Compare == b.Compare && a.Swap == b.Swap && bytes.Equal(a.Data, b.Data) &&
		a.From == b.From && bytes.Equal(a.Spans, b.Spans)
}
