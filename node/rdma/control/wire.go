package control

import (
	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/transport"
)

// What a ring frame asks for, in the place of its number of items.
const (
	RingOpen  = iota
	RingPost  // to add buffers
	RingCount // how far the ring is
	RingClose
)

// RingBytes are those of a ring frame's body behind the rights, before the buffers, and CountBytes
// those of the answer to a count.
const (
	RingBytes  = 8
	CountBytes = 8 * (2 + 2*rdma.MaxStreams)
)

// What a listen frame asks for, in the place of its number of items.
const (
	ListenTell  = iota // nothing: it says how many buffers were released
	ListenOpen         // a mailbox
	ListenClose        // the end of it
)

// OpenBytes is the body of a listen frame that opens a mailbox, behind the rights.
const OpenBytes = 24

// MayUse reports whether a worker may have the mailbox of that number: those of others' identities
// are theirs.
func MayUse(number int, c rdma.ClientID) bool {
	return number >= 1 && (number < rdma.OwnBoxes || number == rdma.OwnBoxes+int(c))
}

// MessageBytes are those of a message frame's body before the data.
const MessageBytes = 16

// IsLong reports whether the answer to a control message may be long.
func (m *Message) IsLong() bool {
	return m.Do == DoAttached || m.Do == DoRegistry && m.Ask != nil && m.Ask.Kind == membership.KindPeekAll
}

// ReaderBody is the body of a frame of as many READs as there may be, or of other verbs with
// operands of ReaderWrite bytes, which are refused.
const (
	ReaderWrite = 32
	ReaderBody  = transport.RightsBytes + transport.MaxItems*(transport.OpBytes+ReaderWrite)
)
