package transport

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// A connection begins with a greeting of fixed length each way, which names the protocol and its
// versions and carries a nonce, and then with one frame each way: the caller says what it wants,
// and both prove that they know the pool's token by an HMAC of it over both nonces. The token
// itself is never sent. Nothing else is read, and no more memory taken, before. The two halves
// are greet and Greeted:
//
//	caller -> node  greeting: 48 bytes
//	node -> caller  greeting: 48 bytes; none when the caller's has another magic
//	caller -> node  hello: a frame of JSON with the caller's proof
//	node -> caller  welcome: a frame of JSON with the node's proof, or with a refusal
//
// With TLS all of it goes through TLS. The caller proves first. So a caller without a token
// learns nothing from the node by which a token could be guessed.
const (
	GreetingBytes = 48
	MaxHello      = 4 << 10 // bytes of a hello, and of its answer
	// GreetPatience bounds all of it at the node, the handshake of TLS included: until a
	// connection has said what it wants it takes one of a bounded number of places.
	GreetPatience = 3 * time.Second
)

// magic is what greetings of every version begin with.
var magic = [8]byte{'f', 'a', 'r', 'k', 'v', 't', 'c', 'p'}

// Greeting is what either end says first: the magic, the versions of the wire and of control
// messages (u16 each, then 0 u32), and a nonce of 32 bytes.
type Greeting [GreetingBytes]byte

// NewGreeting returns one with this build's versions and a nonce of its own. Each connection has
// one of its own at either end. A nonce that came twice would let a recorded proof pass.
func NewGreeting() (g Greeting) {
	copy(g[:], magic[:])
	g.putVersions()
	rand.Read(g[16:]) // never fails
	return g
}

// isOurs reports whether the other end speaks this protocol, in whatever version.
func (g *Greeting) isOurs() bool { return [8]byte(g[:8]) == magic }

// Check returns why peer cannot be talked to; self is "program" or "node". Errors wrap ErrProtocol.
func (g *Greeting) Check(peer, self string) error {
	if !g.isOurs() {
		return fmt.Errorf("%s speaks another protocol than farkv's: %w", peer, ErrProtocol)
	}
	return g.checkVersions(peer, self)
}

// Purpose is what a connection is for. The node takes other frames over connections for other
// purposes: see memnode's conn.handle.
type Purpose string

const (
	ForVerbs   Purpose = "verbs"   // one a process and node
	ForControl Purpose = "control" // the same
	ForPeer    Purpose = "peer"    // a node of the pool that asks for leases
)

// Hello is what a caller wants. All of it is covered by Proof. A node has one connection for each
// Process and Purpose; of peers, for each Peer. Another one ends the one before it. When one for
// verbs is let in, nothing that came over the one before is executed any more.
//
// The node encodes what it has decoded once more, to check the proof. So a field that it does not
// know makes the proof fail: a new field needs another version in the greeting.
type Hello struct {
	Purpose Purpose `json:"purpose"`
	Process string  `json:"process"` // its own for each process and node
	PID     int     `json:"pid"`
	Pool    string  `json:"pool,omitempty"`  // that it is about; "": it only inspects
	Node    int     `json:"node"`            // number of the called node in the pool
	Peer    int     `json:"peer"`            // number of the calling node, of forPeer
	Admin   bool    `json:"admin,omitempty"` // an administrator's: see adminConns
	Proof   []byte  `json:"proof"`
}

// Welcome is the answer. Key is what frames of verbs have to claim as Rights.Key. A reader gets
// another one than clients that may write. A refusal has a Text, and a status in its header.
type Welcome struct {
	Incarnation uint64 `json:"incarnation"` // of the node's process
	Key         uint64 `json:"key,omitempty"`
	ReadOnly    bool   `json:"read_only,omitempty"`
	Text        string `json:"text,omitempty"` // why not
	Proof       []byte `json:"proof"`
}

// ErrToken is wrapped when the two ends do not know the same token. A node is to be started, or a
// client opened, with another one: to try again does not help.
var ErrToken = errors.New("wrong token")

// ErrTLS is wrapped when a connection ends as it does where one end uses TLS and the other does
// not, or does not trust it.
var ErrTLS = errors.New("perhaps the two ends do not agree on TLS")

// Prove returns what only a holder of the token can compute, and only for this connection: it
// covers the role of the sender, the greetings of both ends, and what is said. So a proof that an
// attacker passes on is worth nothing elsewhere: see memnode's conn.mayAct. The roles differ, so
// that neither end can return the other's proof as its own. The greetings have a fixed length. So
// no two contents give the same input of the HMAC.
func Prove(token []byte, side string, caller, node *Greeting, what any) []byte {
	text, err := json.Marshal(what)
	if err != nil {
		panic(fmt.Sprintf("tcp: a %T cannot be proved: %v", what, err))
	}
	m := hmac.New(sha256.New, token)
	m.Write([]byte(side))
	m.Write(caller[:])
	m.Write(node[:])
	m.Write(text)
	return m.Sum(nil)
}

// unproved is h without its proof: what that is of.
func (h Hello) unproved() Hello { h.Proof = nil; return h }

// Likewise, and for either end: w is a copy.
func (w Welcome) unproved() Welcome { w.Proof = nil; return w }

// greet is the caller's half. It returns what the node answered; errors wrap ErrProtocol,
// ErrToken, or what the node refused with. The connection's deadline bounds it. The caller proves
// first. It acts on nothing that the node says, a refusal included, before the node has proved
// that it knows the token. It blocks for two round trips, and those of TLS, of which the
// handshake begins with the first Write. Dial sets no deadline: it closes the connection when its
// context ends.
func greet(c net.Conn, s Security, h Hello) (Welcome, error) {
	mine, theirs := NewGreeting(), Greeting{}
	_, err := c.Write(mine[:])
	if err == nil {
		_, err = io.ReadFull(c, theirs[:])
	}
	if err != nil {
		return Welcome{}, fmt.Errorf("no greeting: %w", disagreed(err))
	}
	if err := theirs.Check("node "+c.RemoteAddr().String(), "program"); err != nil {
		return Welcome{}, err
	}
	token := s.Token
	if len(token) == 0 {
		token = s.ReadToken
	}
	h.Admin = s.Admin
	h.Proof = Prove(token, "caller", &mine, &theirs, h.unproved())
	if err := WriteMessage(c, KindHello, StatusOK, h); err != nil {
		return Welcome{}, err
	}
	var w Welcome
	st, err := ReadMessage(c, KindHello, MaxHello, &w)
	if err != nil {
		return Welcome{}, err
	}
	if !hmac.Equal(w.Proof, Prove(token, "node", &mine, &theirs, w.unproved())) {
		if w.Text == "" {
			w.Text = "the node does not know ours"
		}
		return Welcome{}, fmt.Errorf("%w: %s", ErrToken, w.Text)
	}
	if st != StatusOK {
		return Welcome{}, &Refused{st, w.Text}
	}
	return w, nil
}

// disagreed adds ErrTLS to why there was no greeting, where it looks like that. A node with TLS
// hangs up on a plain greeting. One without TLS finds no magic in a ClientHello, and hangs up
// without a greeting. A "remote error" is an alert by which the other end says why it does not
// trust this one's certificate.
func disagreed(err error) error {
	var plain tls.RecordHeaderError
	var untrusted *tls.CertificateVerificationError
	var told *net.OpError
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.As(err, &plain) ||
		errors.As(err, &untrusted) ||
		errors.As(err, &told) && told.Op == "remote error" {
		return fmt.Errorf("%w: %w", ErrTLS, err)
	}
	return err
}

// Greeted is the node's half up to the caller's hello; answer is how to end it. The nonces are
// fresh at both ends, so that neither a recorded hello nor a recorded welcome is worth anything.
// A caller that does not know a token gets an answer without a proof. It sets no deadline. It
// blocks as long as the connection lets it, and reads nothing behind the hello. The caller of
// Greeted checks the rest of the hello, such as the pool, and then calls answer once. h is
// trusted when err is nil.
func Greeted(c net.Conn, s Security) (h Hello, readOnly bool, answer func(Welcome, Status) error, err error) {
	theirs, mine := Greeting{}, NewGreeting()
	if _, err := io.ReadFull(c, theirs[:]); err != nil {
		return h, false, nil, fmt.Errorf("no greeting: %w", err)
	}
	if theirs.isOurs() { // of another version, too, so that the caller can say what is wrong
		if _, err := c.Write(mine[:]); err != nil {
			return h, false, nil, err
		}
	}
	if err := theirs.Check("client "+c.RemoteAddr().String(), "node"); err != nil {
		return h, false, nil, err
	}
	if _, err := ReadMessage(c, KindHello, MaxHello, &h); err != nil {
		return h, false, nil, err
	}
	// A token that is empty is known to all: such a node listens on loopback only.
	full := hmac.Equal(h.Proof, Prove(s.Token, "caller", &theirs, &mine, h.unproved()))
	// An empty ReadToken is none.
	read := hmac.Equal(h.Proof, Prove(s.ReadToken, "caller", &theirs, &mine, h.unproved())) && len(s.ReadToken) > 0
	// The node proves by the token that the caller knows.
	token := s.Token
	if read && !full {
		token = s.ReadToken
	}
	answer = func(w Welcome, st Status) error {
		w.Proof = Prove(token, "node", &theirs, &mine, w.unproved())
		return WriteMessage(c, KindHello, st, w)
	}
	if !full && !read {
		w := Welcome{Text: "the node wants another one"}
		if len(s.Token) == 0 {
			w.Text = "the node was started without one"
		}
		return h, false, nil, errors.Join(ErrToken, WriteMessage(c, KindHello, StatusAccess, w))
	}
	return h, !full, answer, nil
}

// WriteMessage sends one frame with a body of JSON. Header and body go out with one Write.
func WriteMessage(c io.Writer, k Kind, st Status, m any) error {
	p, err := AppendMessage(nil, k, st, 0, m)
	if err != nil {
		return err
	}
	_, err = c.Write(p)
	return err
}

// AppendMessage appends one frame with a body of JSON. The body is padded with blanks, which JSON
// ignores. Sending.End puts another header in its place, with the link's tag. With an error,
// which says that m cannot be encoded, p is what it was.
func AppendMessage(p []byte, k Kind, st Status, tag uint32, m any) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return p, fmt.Errorf("encode a message: %w", err)
	}
	at := len(p)
	p = append(p, make([]byte, HeaderBytes)...)
	p = append(p, body...)
	for n := len(body); n%8 != 0; n++ {
		p = append(p, ' ')
	}
	Header{Body: len(p) - at - HeaderBytes, Kind: k, Status: st, Tag: tag}.Put(p[at:])
	return p, nil
}

// ReadMessage reads the next frame of the given kind, pings apart, with a body of JSON of most
// bytes at most. It takes no byte more than the frame has from c: what is behind it is for the
// next reader. It allocates most bytes at most, also for an end that has proved nothing yet. It
// drops pings, which a node sends while a message takes its time. A body that is no JSON is an
// ErrProtocol.
func ReadMessage(c io.Reader, k Kind, most int, m any) (Status, error) {
	h := Header{Kind: KindPing}
	for h.Kind == KindPing { // the connection's deadline bounds it
		var p [HeaderBytes]byte
		if _, err := io.ReadFull(c, p[:]); err != nil {
			return 0, err
		}
		var err error
		if h, err = ParseHeader(p[:], most); err != nil {
			return 0, err
		}
		if h.Kind != k && (h.Kind != KindPing || h.Body > 0) {
			return 0, fmt.Errorf("frame of kind %d instead of %d: %w", h.Kind, k, ErrProtocol)
		}
	}
	body := make([]byte, h.Body)
	if _, err := io.ReadFull(c, body); err != nil {
		return 0, err
	}
	if err := json.Unmarshal(body, m); err != nil {
		return 0, fmt.Errorf("decode a message: %w: %w", ErrProtocol, err)
	}
	return h.Status, nil
}

// Refused is why a node did not welcome a caller. It wraps the sentinel of its status, by which
// callers branch; Text is the node's.
type Refused struct {
	Status Status
	Text   string
}

func (r *Refused) Error() string { return r.Text }

func (r *Refused) Unwrap() error { return r.Status.Err() }

// Refuse returns a refusal with err's status. Its text goes to the caller as Welcome.Text.
func Refuse(err error, format string, args ...any) *Refused {
	return &Refused{StatusOf(err), fmt.Sprintf(format, args...)}
}
