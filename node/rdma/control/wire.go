package control

import (
	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/transport"
)

// The frames of package transport that this package gives a meaning: their numbers, and the lengths
// of their bodies. Both ends use them: the process here, and the node in package memnode. The
// layouts are in transport's wire.go. Everything is little-endian, and bodies are whole words.

// What a ring frame asks for, in the place of its number of items.
const (
	// to open a ring with n places for buffers, and without buffers
	RingOpen  = iota
	RingPost  // to add buffers
	RingCount // how far the ring is
	RingClose
)

// RingBytes are those of a ring frame's body behind the rights, before the buffers, and CountBytes
// those of the answer to a count.
const (
	// the ring's number u32 | n u32, which is the number of places to open or of buffers to post
	RingBytes  = 8
	CountBytes = 8 * (2 + 2*rdma.MaxStreams)
)

// What a listen frame asks for, in the place of its number of items.
const (
	ListenTell  = iota // nothing: it says how many buffers were released
	ListenOpen         // a mailbox
	ListenClose        // the end of it
)

// OpenBytes is the body of a listen frame that opens a mailbox, behind the rights: number u32 | id
// u32 | buffers u32 | bytes u32 of each | taken buffers u32 | 0 u32. The id is the process's own
// name for the mailbox: messages bring it back as their tag, so that a message for a mailbox that
// was closed finds none.
const OpenBytes = 24

// MayUse reports whether a worker may have the mailbox of that number: those of others' identities
// are theirs. Both ends ask it. The node asks when a mailbox is opened and for the sender of each
// message, and the receiver asks again: what it answers to goes to the worker that sent.
func MayUse(number int, c rdma.ClientID) bool {
	return number >= 1 && (number < rdma.OwnBoxes || number == rdma.OwnBoxes+int(c))
}

// MessageBytes are those of a message frame's body before the data: the sender's mailbox u32 | its
// client u32 | bytes of data u32 | 0 u32.
const MessageBytes = 16

// IsLong reports whether the answer to a control message may be long: it names the processes that
// are alive, up to one for each connection of the node, or lists the registry's records. A node has
// few large buffers for long answers, and a reader waits for one before such a message is executed.
func (m *Message) IsLong() bool {
	return m.Do == DoAttached || m.Do == DoRegistry && m.Ask != nil && m.Ask.Kind == membership.KindPeekAll
}

// ReaderBody is the body of a frame of as many READs as there may be, or of other verbs with
// operands of ReaderWrite bytes, which are refused.
const (
	ReaderWrite = 32
	ReaderBody  = transport.RightsBytes + transport.MaxItems*(transport.OpBytes+ReaderWrite)
)
