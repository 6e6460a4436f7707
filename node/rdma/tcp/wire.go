package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// The wire. A connection begins with a greeting (see greet.go) and then carries frames, each a
// header of 16 bytes and a body with a length that is a multiple of 8. Requests are executed in the
// order in which they were sent, and answered in it. Everything is little-endian.
//
//	header   body bytes u32 | kind u8 | status u8 | items u16 | tag u32 | 0 u32
//	verbs    key u64 | client u16, 0 u16, released u32 | life u64 | epoch u64, and then by verb:
//	         verb u8 | 0 u24 | bytes u32 | offset u64, and then operands or data, padded to 8
//	         SEND: the offset is the mailbox; then its sender's mailbox u32 | spans u32, its data,
//	         and by span: offset u64 | bytes u64
//	         APPEND: the offset is the number of the ring
//	answer   by verb: status u32 | bytes u32, and then the data of a READ, padded to 8, or the
//	         word before an atomic
//	call     as verbs, then: proc u16, 0 u48 | 6 arguments u64
//	answer   6 results u64, or the text of an error
//	control  a message in JSON, padded with blanks; so is its answer
//	ping     nothing; so is its answer, which may come out of turn, and unasked for while a
//	         control message takes its time
//	serve    nothing; the answer: for how long yet the node serves, in ns, u64 | the epoch that
//	         was fenced last u64
//	attach   key, client, life and epoch as verbs, to a ring its number u32 | stream u32, and what
//	         a device offers, padded to 8; items says what to do
//	answer   what the other device answers, padded to 8, or the text of an error; items is its
//	         length
//	listen   key, client, released, life and epoch as verbs, and to open a mailbox: number u32 |
//	         id u32 | buffers u32 | bytes u32 of each | taken buffers u32 | 0 u32; items says what
//	         to do
//	answer   nothing, unless the frame only brought the number of buffers that were released: then
//	         there is none
//	ring     key, client, released, life and epoch as verbs, and then: number u32 | n u32; items
//	         says what to do; n are the places of a ring to open, or buffers to post, and then by
//	         buffer: address u64 | bytes u64
//	answer   of a count: buffers that were begun u64 | settled u64 | numbers of those that are
//	         open 12 u64
//	message  from a node, unasked for: its sender's mailbox u32 | client u32 | bytes u32 | 0 u32,
//	         and then its data, padded to 8; the tag is the id of the mailbox that it is for. With
//	         other items, see meet.go:
//	offer    the sender's connection u64 | id u32 | client u32 | life u64 | epoch u64 | its
//	         mailbox u32 | bytes u32, and then what its device offers, padded to 8; the tag as
//	         above
//	answer   bytes u32 | 0 u32, and then what the mailbox's device answers, padded to 8; the tag
//	         is the sender's id
//	bye      messages u32 | 0 u32; the tag as above
//	part     number u64 | epoch that was fenced last u64 | client u64 | life u64
//	meet     key, client, released, life and epoch as verbs, then mailbox u32 | its sender's
//	         mailbox u32 | id u32 | bytes u32, and then what a device offers, padded to 8; or, to
//	         ask whether it may, mailbox u32 | 0 u32; the answer: nothing. By items it is from a
//	         mailbox, too, and not answered: connection u64 | id u32 | bytes u32, and then its
//	         answer, padded to 8; connection u64 | id u32 | messages u32; or number u64
const (
	headerBytes = 16
	rightsBytes = 32 // key, client, life, epoch
	opBytes     = 16
	resultBytes = 8
	callBytes   = rightsBytes + 8 + 6*8

	maxItems = 1024 // verbs of a frame
	// bytes of data that a frame's verbs write, and as many that they read; longer verbs go in
	// parts
	maxData = 256 << 10
	maxBody = rightsBytes + maxItems*(opBytes+32+8) + maxData
	maxText = 256 // bytes of an error's text
)

type kind uint8

const (
	kindVerbs kind = iota + 1
	kindCall
	kindControl
	kindPing
	kindServe
	kindAttach
	kindHello
	kindListen
	kindMessage
	kindRing
	kindMeet
)

// status is how a request, or a verb of it, ended.
type status uint8

const (
	statusOK status = iota
	statusAccess
	statusRevoked
	statusStale
	statusDown // the node serves no client of this pool
	statusFull
	statusNotSupported
	statusHeld
	statusConnections // the node has as many connections as it takes
	statusBoxFull
	statusMessageSize
	statusNoBox
	statusExists // another worker has the mailbox, or the ring
	statusRingDry
	statusNoRing
	statusFailed // anything else
)

// errorOf is the sentinel of each status.
var errorOf = [...]error{
	statusAccess: rdma.ErrAccess, statusRevoked: rdma.ErrRevoked, statusStale: rdma.ErrStale,
	statusDown: rdma.ErrNodeDown, statusFull: rdma.ErrFull, statusNotSupported: rdma.ErrNotSupported,
	statusHeld: rdma.ErrHeld, statusConnections: ErrConnections, statusBoxFull: rdma.ErrBoxFull,
	statusMessageSize: rdma.ErrMessageSize, statusNoBox: rdma.ErrNoBox, statusExists: rdma.ErrExists,
	statusRingDry: rdma.ErrRingDry, statusNoRing: rdma.ErrNoRing,
	statusFailed: errFailed,
}

var errFailed = errors.New("failed")

func (s status) err() error {
	if int(s) >= len(errorOf) {
		return errFailed
	}
	return errorOf[s]
}

// statusOf is the status that says most of err. A revocation is an ErrAccess, too.
func statusOf(err error) status {
	if err == nil {
		return statusOK
	}
	for _, s := range []status{
		statusRevoked, statusAccess, statusStale, statusDown, statusFull, statusNotSupported,
		statusHeld, statusConnections, statusNoBox, statusNoRing,
	} {
		if errors.Is(err, errorOf[s]) {
			return s
		}
	}
	return statusFailed
}

// ErrProtocol is wrapped when the other end does not keep to the protocol: it is none of ours, or
// of another version.
var ErrProtocol = errors.New("not farkv's protocol")

// header is that of a frame.
type header struct {
	body   int
	kind   kind
	status status
	items  int
	tag    uint32
}

func (h header) put(p []byte) {
	le := binary.LittleEndian
	le.PutUint32(p, uint32(h.body))
	p[4], p[5] = byte(h.kind), byte(h.status)
	le.PutUint16(p[6:], uint16(h.items))
	le.PutUint32(p[8:], h.tag)
	le.PutUint32(p[12:], 0)
}

// parseHeader reads a frame's header, and trusts none of it. p has headerBytes at least.
func parseHeader(p []byte, most int) (header, error) {
	le := binary.LittleEndian
	n, k := le.Uint32(p), kind(p[4])
	if n > uint32(most) || n%8 != 0 || k < kindVerbs || k > kindMeet || le.Uint32(p[12:]) != 0 {
		return header{}, fmt.Errorf("frame of kind %d with %d bytes: %w", k, n, ErrProtocol)
	}
	return header{int(n), k, status(p[5]), int(le.Uint16(p[6:])), le.Uint32(p[8:])}, nil
}

// rights are what a request's sender claims.
type rights struct {
	key    uint64
	client rdma.ClientID
	life   uint64
	epoch  uint64
	// released counts the buffers of the client's mailbox that it has given back since it opened
	// that at the node.
	released uint32
}

func (r *rights) append(p []byte) []byte {
	le := binary.LittleEndian
	p = le.AppendUint64(p, r.key)
	p = le.AppendUint64(p, uint64(r.client)|uint64(r.released)<<32)
	p = le.AppendUint64(p, r.life)
	return le.AppendUint64(p, r.epoch)
}

func parseRights(p []byte) rights {
	le := binary.LittleEndian
	return rights{le.Uint64(p), rdma.ClientID(le.Uint16(p[8:])), le.Uint64(p[16:]),
		le.Uint64(p[24:]), le.Uint32(p[12:])}
}

// request is one verb as it is on the wire. Its data points into the frame.
type request struct {
	verb          rdma.Verb // 0: its sender knows that it is outside of all that may be touched
	off           uint64
	n             int // bytes it touches
	expect, value uint64
	compare, swap uint64
	data          []byte
	from          int    // of a SEND: its sender's mailbox
	spans         []byte // of a SEND: spanBytes each
}

func pad(n int) int { return (n + 7) &^ 7 }

// appendVerb appends the part of op that touches n bytes at off; at is where they begin in its
// buffer.
func appendVerb(p []byte, op *rdma.Op, off uint64, at, n int) []byte {
	le := binary.LittleEndian
	p = append(p, byte(op.Verb), 0, 0, 0)
	p = le.AppendUint32(p, uint32(n))
	p = le.AppendUint64(p, off)
	switch op.Verb {
	case rdma.Write, rdma.Append:
		p = append(p, op.Buf[at:at+n]...)
		for n%8 != 0 {
			p = append(p, 0)
			n++
		}
	case rdma.CompareSwap:
		p = le.AppendUint64(p, op.Expect)
		p = le.AppendUint64(p, op.Value)
	case rdma.MaskedCompareSwap:
		p = le.AppendUint64(p, op.Expect)
		p = le.AppendUint64(p, op.Value)
		p = le.AppendUint64(p, op.CompareMask)
		p = le.AppendUint64(p, op.SwapMask)
	case rdma.FetchAdd:
		p = le.AppendUint64(p, op.Value)
	}
	return p
}

// spanBytes are those of a piece that a SEND gathers, and maxSpans bounds how many it has.
const (
	spanBytes = 16
	maxSpans  = 256
)

// sendBytes is how much a SEND adds to a frame beyond other verbs.
func sendBytes(op *rdma.Op) int { return 8 + pad(len(op.Buf)) + len(op.Spans)*spanBytes }

// appendSend appends a SEND of the worker with a mailbox of that number.
func appendSend(p []byte, op *rdma.Op, from int) []byte {
	le := binary.LittleEndian
	p = append(p, byte(op.Verb), 0, 0, 0)
	p = le.AppendUint32(p, uint32(len(op.Buf)))
	p = le.AppendUint64(p, op.Addr.Offset())
	p = le.AppendUint32(p, uint32(from))
	p = le.AppendUint32(p, uint32(len(op.Spans)))
	p = append(p, op.Buf...)
	for n := len(op.Buf); n%8 != 0; n++ {
		p = append(p, 0)
	}
	for _, s := range op.Spans {
		p = le.AppendUint64(p, s.Addr.Offset())
		p = le.AppendUint64(p, uint64(s.Len))
	}
	return p
}

// span returns the i-th piece that a SEND gathers.
func (r *request) span(i int) (off, n uint64) {
	p := r.spans[i*spanBytes:]
	return binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
}

// appendBreach appends in op's place what every node refuses: a verb that cannot be sent in parts
// because a part of it would be executed.
func appendBreach(p []byte) []byte { return append(p, make([]byte, opBytes)...) }

// parseVerb reads one verb, and returns what is behind it.
func parseVerb(p []byte) (r request, rest []byte, err error) {
	le := binary.LittleEndian
	if len(p) < opBytes {
		return r, nil, fmt.Errorf("verb of %d bytes: %w", len(p), ErrProtocol)
	}
	r.verb, r.n, r.off = rdma.Verb(p[0]), int(le.Uint32(p[4:])), le.Uint64(p[8:])
	p = p[opBytes:]
	more := 0 // bytes behind
	switch r.verb {
	case 0, rdma.Read:
	case rdma.Write, rdma.Append:
		more = pad(r.n)
	case rdma.CompareSwap:
		more = 16
	case rdma.MaskedCompareSwap:
		more = 32
	case rdma.FetchAdd:
		more = 8
	case rdma.Send:
		if len(p) < 8 || le.Uint32(p[4:]) > maxSpans {
			return r, nil, fmt.Errorf("SEND with %d bytes there: %w", len(p), ErrProtocol)
		}
		more = 8 + pad(r.n) + spanBytes*int(le.Uint32(p[4:]))
	default:
		return r, nil, fmt.Errorf("verb %d: %w", r.verb, ErrProtocol)
	}
	if r.n > maxData || more > len(p) || r.verb.Atomic() && r.n != 8 {
		return r, nil, fmt.Errorf("%s of %d bytes, %d there: %w", r.verb, r.n, len(p), ErrProtocol)
	}
	switch r.verb {
	case rdma.Write, rdma.Append:
		r.data = p[:r.n]
	case rdma.CompareSwap, rdma.MaskedCompareSwap:
		r.expect, r.value = le.Uint64(p), le.Uint64(p[8:])
		if r.verb == rdma.MaskedCompareSwap {
			r.compare, r.swap = le.Uint64(p[16:]), le.Uint64(p[24:])
		}
	case rdma.FetchAdd:
		r.value = le.Uint64(p)
	case rdma.Send:
		r.from, r.data, r.spans = int(le.Uint32(p)), p[8:8+r.n], p[8+pad(r.n):more]
	}
	return r, p[more:], nil
}

// resultLen is how many bytes a verb's answer has behind its status when it succeeded.
func resultLen(v rdma.Verb, n int) int {
	switch {
	case v == rdma.Read:
		return n
	case v.Atomic():
		return 8
	}
	return 0
}

// appendCall appends a two-sided call behind its rights.
func appendCall(p []byte, r *rdma.Request) []byte {
	le := binary.LittleEndian
	p = le.AppendUint64(p, uint64(r.Proc))
	for _, a := range r.Arg {
		p = le.AppendUint64(p, a)
	}
	return p
}

func parseCall(p []byte) (r rdma.Request) {
	le := binary.LittleEndian
	r.Proc = rdma.Proc(le.Uint16(p))
	for i := range r.Arg {
		r.Arg[i] = le.Uint64(p[8+8*i:])
	}
	return r
}
