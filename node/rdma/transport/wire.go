package transport

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
//	         other items, see control/meet.go:
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
	// Bytes of the fixed parts of frames. Each is a multiple of 8, as are the lengths of padded
	// data. So the words of a body lie at multiples of 8 from its beginning.
	HeaderBytes = 16
	RightsBytes = 32 // key, client, life, epoch
	OpBytes     = 16
	ResultBytes = 8
	CallBytes   = RightsBytes + 8 + 6*8

	// Bounds of one frame, which both ends keep to. So the node buffers MaxBody bytes of a frame
	// at the most, and an answer to verbs is bounded, too: see MaxAnswer.
	MaxItems = 1024 // verbs of a frame
	// bytes of data that a frame's verbs write, and as many that they read; longer verbs go in
	// parts
	MaxData = 256 << 10
	// 32 bytes are the operands of the longest atomic, and 8 more than a WRITE's data is padded
	// with. A SEND counts all that it has behind its first 16 bytes as data: see SendBytes.
	MaxBody = RightsBytes + MaxItems*(OpBytes+32+8) + MaxData
	MaxText = 256 // bytes of an error's text
)

// Kind is what a frame is: see above.
type Kind uint8

// What frames are.
const (
	// The numbers are part of the format. 0 is none of them, so that a header of zeros is
	// refused.
	KindVerbs   Kind = iota + 1
	KindCall         // of a node's procedure
	KindControl      // a message in JSON
	KindPing         // the question whether the other end is alive
	KindServe        // the question for how long a node serves
	KindAttach       // to connect a worker's device, or the end of that
	KindHello        // behind the greeting
	KindListen       // to open or close a mailbox
	KindMessage      // to a mailbox
	KindRing         // to open a ring, post to it, count and close it
	KindMeet         // to connect two devices
)

// Status is how a request, or a verb of it, ended.
type Status uint8

// How requests end: see errorOf.
const (
	// The numbers are part of the format: another order needs another version.Wire.
	StatusOK Status = iota
	StatusAccess
	StatusRevoked
	StatusStale
	StatusDown // the node serves no client of this pool
	StatusFull
	StatusNotSupported
	StatusHeld
	StatusConnections // the node has as many connections as it takes
	StatusBoxFull
	StatusMessageSize
	StatusNoBox
	StatusExists // another worker has the mailbox, or the ring
	StatusRingDry
	StatusNoRing
	StatusFailed // anything else
)

// errorOf is the sentinel of each status. The status is the index. That of StatusOK is nil.
var errorOf = [...]error{
	StatusAccess: rdma.ErrAccess, StatusRevoked: rdma.ErrRevoked, StatusStale: rdma.ErrStale,
	StatusDown: rdma.ErrNodeDown, StatusFull: rdma.ErrFull, StatusNotSupported: rdma.ErrNotSupported,
	StatusHeld: rdma.ErrHeld, StatusConnections: ErrConnections, StatusBoxFull: rdma.ErrBoxFull,
	StatusMessageSize: rdma.ErrMessageSize, StatusNoBox: rdma.ErrNoBox, StatusExists: rdma.ErrExists,
	StatusRingDry: rdma.ErrRingDry, StatusNoRing: rdma.ErrNoRing,
	StatusFailed: ErrFailed,
}

// ErrFailed is wrapped by failures that have no status of their own.
var ErrFailed = errors.New("failed")

// Err returns the sentinel of a status; nil for StatusOK. One that this build does not know is
// ErrFailed.
func (s Status) Err() error {
	if int(s) >= len(errorOf) {
		return ErrFailed
	}
	return errorOf[s]
}

// StatusOf is the status that says most of err. A revocation is an ErrAccess, too. So the order
// of the list counts: the first that matches is taken. Statuses that are not in it, such as
// StatusBoxFull, the node sets itself.
func StatusOf(err error) Status {
	if err == nil {
		return StatusOK
	}
	for _, s := range []Status{
		StatusRevoked, StatusAccess, StatusStale, StatusDown, StatusFull, StatusNotSupported,
		StatusHeld, StatusConnections, StatusNoBox, StatusNoRing,
	} {
		if errors.Is(err, errorOf[s]) {
			return s
		}
	}
	return StatusFailed
}

// ErrProtocol is wrapped when the other end does not keep to the protocol: it is none of ours, or
// of another version. A frame that breaks it ends the connection over which it came.
var ErrProtocol = errors.New("not farkv's protocol")

// Header is that of a frame. Body is the length of what is behind it, in bytes. Items is the
// number of verbs, or says what frames of some kinds are to do: see the constants of package
// control. An answer has the kind and the tag of its request. In a frame that is not answered the
// tag is 0, or the id of the mailbox or sender that it is for. Requests have StatusOK, but for
// those that tell how something ended.
type Header struct {
	Body   int
	Kind   Kind
	Status Status
	Items  int
	Tag    uint32
}

// Put writes the header. p has HeaderBytes at least. All of them are written.
func (h Header) Put(p []byte) {
	le := binary.LittleEndian
	le.PutUint32(p, uint32(h.Body))
	p[4], p[5] = byte(h.Kind), byte(h.Status)
	le.PutUint16(p[6:], uint16(h.Items))
	le.PutUint32(p[8:], h.Tag)
	le.PutUint32(p[12:], 0)
}

// ParseHeader reads a frame's header, and trusts none of it. p has HeaderBytes at least. most
// bounds the body, in bytes, before memory is taken for it. The errors wrap ErrProtocol. The
// status may be any: see Status.Err.
func ParseHeader(p []byte, most int) (Header, error) {
	le := binary.LittleEndian
	n, k := le.Uint32(p), Kind(p[4])
	if n > uint32(most) || n%8 != 0 || k < KindVerbs || k > KindMeet || le.Uint32(p[12:]) != 0 {
		return Header{}, fmt.Errorf("frame of kind %d with %d bytes: %w", k, n, ErrProtocol)
	}
	return Header{int(n), k, Status(p[5]), int(le.Uint16(p[6:])), le.Uint32(p[8:])}, nil
}

// Rights are what a request's sender claims. The node holds them against what was fenced and
// revoked, under a lock, when it executes the frame, and not when the frame comes in. Key is what
// the node gave in its Welcome. Client is 0 for a worker without an identity. Life tells the
// holders of an identity apart. Epoch is that of the view which the worker had joined when the
// frame was made.
type Rights struct {
	Key    uint64
	Client rdma.ClientID
	Life   uint64
	Epoch  uint64
	// Released counts the buffers of the client's mailbox that it has given back since it opened
	// that at the node.
	Released uint32
}

// Append appends what a request claims. Released shares a word with the client: Rights take
// RightsBytes.
func (r *Rights) Append(p []byte) []byte {
	le := binary.LittleEndian
	p = le.AppendUint64(p, r.Key)
	p = le.AppendUint64(p, uint64(r.Client)|uint64(r.Released)<<32)
	p = le.AppendUint64(p, r.Life)
	return le.AppendUint64(p, r.Epoch)
}

// ParseRights reads what Append wrote. p has RightsBytes at least.
func ParseRights(p []byte) Rights {
	le := binary.LittleEndian
	return Rights{le.Uint64(p), rdma.ClientID(le.Uint16(p[8:])), le.Uint64(p[16:]),
		le.Uint64(p[24:]), le.Uint32(p[12:])}
}

// Request is one verb as it is on the wire. Its data points into the frame. So it is valid as
// long as the frame's buffer. Expect and Value are of a CompareSwap; a FetchAdd has its addend in
// Value. Compare and Swap are the masks of a MaskedCompareSwap.
type Request struct {
	Verb          rdma.Verb // 0: its sender knows that it is outside of all that may be touched
	Off           uint64
	N             int // bytes it touches
	Expect, Value uint64
	Compare, Swap uint64
	Data          []byte
	From          int    // of a SEND: its sender's mailbox
	Spans         []byte // of a SEND: SpanBytes each
}

// Pad returns n up to whole words.
func Pad(n int) int { return (n + 7) &^ 7 }

// AppendVerb appends the part of op that touches n bytes at off; at is where they begin in its
// buffer. The bytes are copied: the op's buffer is not needed any more to send it. Only READs and
// WRITEs come in parts. Any other op is whole: at is 0, and n its length. The caller keeps the
// frame within MaxItems and MaxData. The padding is zeros.
func AppendVerb(p []byte, op *rdma.Op, off uint64, at, n int) []byte {
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

// SpanBytes are those of a piece that a SEND gathers, and MaxSpans bounds how many it has.
const (
	SpanBytes = 16
	MaxSpans  = 256
)

// SendBytes is how much a SEND adds to a frame beyond other verbs. The sender's frame counts it
// against MaxData.
func SendBytes(op *rdma.Op) int { return 8 + Pad(len(op.Buf)) + len(op.Spans)*SpanBytes }

// AppendSend appends a SEND of the worker with a mailbox of that number. Of the bytes that it
// has, only those of op.Buf are in the frame: the node gathers the spans from its own memory.
func AppendSend(p []byte, op *rdma.Op, from int) []byte {
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

// Span returns the i-th piece that a SEND gathers. i is below len(r.Spans)/SpanBytes. The node
// checks that the piece lies in its memory.
func (r *Request) Span(i int) (off, n uint64) {
	p := r.Spans[i*SpanBytes:]
	return binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
}

// AppendBreach appends in op's place what every node refuses: a verb that cannot be sent in parts
// because a part of it would be executed. It is a verb 0 of no bytes at offset 0.
func AppendBreach(p []byte) []byte { return append(p, make([]byte, OpBytes)...) }

// ParseVerb reads one verb, and returns what is behind it. It trusts no length: what it returns
// lies within p. Whether the verb stays within the node's memory, and an atomic is aligned, is
// left to what executes it: a breach ends with StatusAccess, and not with the connection to the
// process. The errors wrap ErrProtocol.
func ParseVerb(p []byte) (r Request, rest []byte, err error) {
	le := binary.LittleEndian
	if len(p) < OpBytes {
		return r, nil, fmt.Errorf("verb of %d bytes: %w", len(p), ErrProtocol)
	}
	r.Verb, r.N, r.Off = rdma.Verb(p[0]), int(le.Uint32(p[4:])), le.Uint64(p[8:])
	p = p[OpBytes:]
	more := 0 // bytes behind
	switch r.Verb {
	case 0, rdma.Read:
	case rdma.Write, rdma.Append:
		more = Pad(r.N)
	case rdma.CompareSwap:
		more = 16
	case rdma.MaskedCompareSwap:
		more = 32
	case rdma.FetchAdd:
		more = 8
	case rdma.Send:
		if len(p) < 8 || le.Uint32(p[4:]) > MaxSpans {
			return r, nil, fmt.Errorf("SEND with %d bytes there: %w", len(p), ErrProtocol)
		}
		more = 8 + Pad(r.N) + SpanBytes*int(le.Uint32(p[4:]))
	default:
		return r, nil, fmt.Errorf("verb %d: %w", r.Verb, ErrProtocol)
	}
	// more is below 2^33 here, so that nothing has overflowed before N is bounded.
	if r.N > MaxData || more > len(p) || r.Verb.Atomic() && r.N != 8 {
		return r, nil, fmt.Errorf("%s of %d bytes, %d there: %w", r.Verb, r.N, len(p), ErrProtocol)
	}
	switch r.Verb {
	case rdma.Write, rdma.Append:
		r.Data = p[:r.N]
	case rdma.CompareSwap, rdma.MaskedCompareSwap:
		r.Expect, r.Value = le.Uint64(p), le.Uint64(p[8:])
		if r.Verb == rdma.MaskedCompareSwap {
			r.Compare, r.Swap = le.Uint64(p[16:]), le.Uint64(p[24:])
		}
	case rdma.FetchAdd:
		r.Value = le.Uint64(p)
	case rdma.Send:
		r.From, r.Data, r.Spans = int(le.Uint32(p)), p[8:8+r.N], p[8+Pad(r.N):more]
	}
	return r, p[more:], nil
}

// ResultLen is how many bytes a verb's answer has behind its status when it succeeded. In the
// frame they are padded. A verb that failed has its status only.
func ResultLen(v rdma.Verb, n int) int {
	switch {
	case v == rdma.Read:
		return n
	case v.Atomic():
		return 8
	}
	return 0
}

// AppendCall appends a two-sided call behind its rights. Client and Ret stay out: the node knows
// the first from the rights, and makes the second.
func AppendCall(p []byte, r *rdma.Request) []byte {
	le := binary.LittleEndian
	p = le.AppendUint64(p, uint64(r.Proc))
	for _, a := range r.Arg {
		p = le.AppendUint64(p, a)
	}
	return p
}

// ParseCall reads what AppendCall wrote. p is what a body of CallBytes has behind its rights.
func ParseCall(p []byte) (r rdma.Request) {
	le := binary.LittleEndian
	r.Proc = rdma.Proc(le.Uint16(p))
	for i := range r.Arg {
		r.Arg[i] = le.Uint64(p[8+8*i:])
	}
	return r
}
