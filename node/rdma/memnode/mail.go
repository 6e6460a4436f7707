package memnode

import (
	"sync"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/transport"
)

// mostMail bounds in bytes the mail of a connection that is not being written yet; as much may be
// being written.
const mostMail = 1 << 20

// smallMail is how much of it a connection keeps memory for. There is largeMail for more, until it
// is written.
const smallMail = 64 << 10

// largeMail holds mostMail of bodies and data, and what the last frame adds to that: its header,
// the header of its message, and padding. Mail that has one is never moved by append. By its
// capacity wrote tells it from a small buffer.
type largeMail [mostMail + transport.HeaderBytes + control.MessageBytes + 8]byte

// largeMails keeps them between uses, for all connections of the process. The collector frees those
// that are not used.
var largeMails sync.Pool // of *largeMail

// mail is what has to be forwarded over a connection. Any goroutine of the node adds frames, by add
// or post, and returns at once. The goroutine that holds outlet.writing takes all that there is,
// writes it, and then calls wrote. So frames leave in the order in which they were added. Mail of a
// connection that ends is lost with it.
//
// Of out, taken and spare two at most are small buffers, which the connection keeps.
type mail struct {
	// mu is never held while something is written.
	mu sync.Mutex
	// out is appended to under mu: whole frames.
	out   []byte
	taken []byte // that is being written, under outlet.writing
	// spare is the small buffer that is in neither role; nil: there is none.
	spare []byte
	// waits is stored under mu. forward looks at it without, and locks nothing where there is no
	// mail.
	waits atomic.Bool // out is not empty
}

// post adds a frame to the mail, if there is room. It returns false rather than wait for a peer
// that takes nothing. A frame always has room when there is no other, so that none is refused for
// ever. head and rest are the frame's body, and are copied.
func (m *mail) post(h transport.Header, head, rest []byte) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := len(m.out)
	h.Body = len(head) + len(rest)
	// What is being written is not counted.
	if at > 0 && at+h.Body > mostMail {
		return false
	}
	if at+transport.HeaderBytes+h.Body > max(smallMail, cap(m.out)) {
		m.enlarge()
	}
	m.out = grow(m.out, transport.HeaderBytes)
	h.Put(m.out[at:])
	m.out = append(append(m.out, head...), rest...)
	m.waits.Store(true)
	return true
}

// enlarge gives the mail memory for all that there may be. The caller holds mu. The small buffer is
// kept as the spare one, unless there is one. out keeps its content.
func (m *mail) enlarge() {
	l, ok := largeMails.Get().(*largeMail)
	if !ok {
		l = new(largeMail)
	}
	small := m.out
	m.out = append(l[:0], small...)
	if m.spare == nil {
		m.spare = small[:0]
	}
}

// take returns all that there is to write. The caller holds outlet.writing, and owns it until it
// calls wrote. It is called again only behind that, so that one buffer at most is taken. What is
// added from now on goes to the spare buffer, or to a new one.
func (m *mail) take() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.taken, m.out, m.spare = m.out, m.spare[:0], nil
	m.waits.Store(false)
	return m.taken
}

// wrote gives the memory of what was taken back. The caller has written all of it. After an error
// it is not called: the memory is left to the collector.
func (m *mail) wrote() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.taken; cap(p) == len(largeMail{}) {
		largeMails.Put((*largeMail)(p[:cap(p)]))
	} else {
		m.spare = p[:0]
	}
	m.taken = nil
}
