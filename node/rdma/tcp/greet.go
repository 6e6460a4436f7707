package tcp

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
// itself is never sent. Nothing else is read, and no more memory taken, before.
const (
	greetingBytes = 48
	maxHello      = 4 << 10 // bytes of a hello, and of its answer
	greetPatience = 3 * time.Second
)

var magic = [8]byte{'f', 'a', 'r', 'k', 'v', 't', 'c', 'p'}

// greeting is what either end says first: the magic, the versions of the wire and of control
// messages (u16 each, then 0 u32), and a nonce of 32 bytes.
type greeting [greetingBytes]byte

func newGreeting() (g greeting) {
	copy(g[:], magic[:])
	g.putVersions()
	rand.Read(g[16:]) // never fails
	return g
}

func (g *greeting) isOurs() bool { return [8]byte(g[:8]) == magic }

// check returns why peer cannot be talked to; self is "program" or "node". Errors wrap ErrProtocol.
func (g *greeting) check(peer, self string) error {
	if !g.isOurs() {
		return fmt.Errorf("%s speaks another protocol than farkv's: %w", peer, ErrProtocol)
	}
	return g.checkVersions(peer, self)
}

// purpose is what a connection is for.
type purpose string

const (
	forVerbs   purpose = "verbs"   // one a process and node
	forControl purpose = "control" // the same
	forPeer    purpose = "peer"    // a node of the pool that asks for leases
)

// hello is what a caller wants.
type hello struct {
	Purpose purpose `json:"purpose"`
	Process string  `json:"process"` // its own for each process and node
	PID     int     `json:"pid"`
	Pool    string  `json:"pool,omitempty"`  // that it is about; "": it only inspects
	Node    int     `json:"node"`            // number of the called node in the pool
	Peer    int     `json:"peer"`            // number of the calling node, of forPeer
	Admin   bool    `json:"admin,omitempty"` // an administrator's: see adminConns
	Proof   []byte  `json:"proof"`
}

// welcome is the answer.
type welcome struct {
	Incarnation uint64 `json:"incarnation"` // of the node's process
	Key         uint64 `json:"key,omitempty"`
	ReadOnly    bool   `json:"read_only,omitempty"`
	Text        string `json:"text,omitempty"` // why not
	Proof       []byte `json:"proof"`
}

// ErrToken is wrapped when the two ends do not know the same token.
var ErrToken = errors.New("wrong token")

// ErrTLS is wrapped when a connection ends as it does where one end uses TLS and the other does
// not, or does not trust it.
var ErrTLS = errors.New("perhaps the two ends do not agree on TLS")

// prove returns what only a holder of the token can compute, and only for this connection: it
// covers the role of the sender, the greetings of both ends, and what is said. So a proof that an
// attacker passes on is worth nothing elsewhere: see conn.mayAct.
func prove(token []byte, side string, caller, node *greeting, what any) []byte {
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
func (h hello) unproved() hello { h.Proof = nil; return h }

func (w welcome) unproved() welcome { w.Proof = nil; return w }

// greet is the caller's half. It returns what the node answered; errors wrap ErrProtocol, ErrToken,
// or what the node refused with. The connection's deadline bounds it.
func greet(c net.Conn, s Security, h hello) (welcome, error) {
	mine, theirs := newGreeting(), greeting{}
	_, err := c.Write(mine[:])
	if err == nil {
		_, err = io.ReadFull(c, theirs[:])
	}
	if err != nil {
		return welcome{}, fmt.Errorf("no greeting: %w", disagreed(err))
	}
	if err := theirs.check("node "+c.RemoteAddr().String(), "program"); err != nil {
		return welcome{}, err
	}
	token := s.Token
	if len(token) == 0 {
		token = s.ReadToken
	}
	h.Admin = s.Admin
	h.Proof = prove(token, "caller", &mine, &theirs, h.unproved())
	if err := writeMessage(c, kindHello, statusOK, h); err != nil {
		return welcome{}, err
	}
	var w welcome
	st, err := readMessage(c, kindHello, maxHello, &w)
	if err != nil {
		return welcome{}, err
	}
	if !hmac.Equal(w.Proof, prove(token, "node", &mine, &theirs, w.unproved())) {
		if w.Text == "" {
			w.Text = "the node does not know ours"
		}
		return welcome{}, fmt.Errorf("%w: %s", ErrToken, w.Text)
	}
	if st != statusOK {
		return welcome{}, &refused{st, w.Text}
	}
	return w, nil
}

// disagreed adds ErrTLS to why there was no greeting, where it looks like that.
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

// greeted is the node's half up to the caller's hello; answer is how to end it.
func greeted(c net.Conn, s Security) (h hello, readOnly bool, answer func(welcome, status) error, err error) {
	theirs, mine := greeting{}, newGreeting()
	if _, err := io.ReadFull(c, theirs[:]); err != nil {
		return h, false, nil, fmt.Errorf("no greeting: %w", err)
	}
	if theirs.isOurs() { // of another version, too, so that the caller can say what is wrong
		if _, err := c.Write(mine[:]); err != nil {
			return h, false, nil, err
		}
	}
	if err := theirs.check("client "+c.RemoteAddr().String(), "node"); err != nil {
		return h, false, nil, err
	}
	if _, err := readMessage(c, kindHello, maxHello, &h); err != nil {
		return h, false, nil, err
	}
	full := hmac.Equal(h.Proof, prove(s.Token, "caller", &theirs, &mine, h.unproved()))
	read := hmac.Equal(h.Proof, prove(s.ReadToken, "caller", &theirs, &mine, h.unproved())) && len(s.ReadToken) > 0
	token := s.Token
	if read && !full {
		token = s.ReadToken
	}
	answer = func(w welcome, st status) error {
		w.Proof = prove(token, "node", &theirs, &mine, w.unproved())
		return writeMessage(c, kindHello, st, w)
	}
	if !full && !read {
		w := welcome{Text: "the node wants another one"}
		if len(s.Token) == 0 {
			w.Text = "the node was started without one"
		}
		return h, false, nil, errors.Join(ErrToken, writeMessage(c, kindHello, statusAccess, w))
	}
	return h, !full, answer, nil
}

// writeMessage sends one frame with a body of JSON.
func writeMessage(c io.Writer, k kind, st status, m any) error {
	p, err := appendMessage(nil, k, st, 0, m)
	if err != nil {
		return err
	}
	_, err = c.Write(p)
	return err
}

// appendMessage appends one frame with a body of JSON.
func appendMessage(p []byte, k kind, st status, tag uint32, m any) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return p, fmt.Errorf("encode a message: %w", err)
	}
	at := len(p)
	p = append(p, make([]byte, headerBytes)...)
	p = append(p, body...)
	for n := len(body); n%8 != 0; n++ {
		p = append(p, ' ')
	}
	header{body: len(p) - at - headerBytes, kind: k, status: st, tag: tag}.put(p[at:])
	return p, nil
}

// readMessage reads the next frame of the given kind, pings apart, with a body of JSON of most
// bytes at most.
func readMessage(c io.Reader, k kind, most int, m any) (status, error) {
	h := header{kind: kindPing}
	for h.kind == kindPing { // the connection's deadline bounds it
		var p [headerBytes]byte
		if _, err := io.ReadFull(c, p[:]); err != nil {
			return 0, err
		}
		var err error
		if h, err = parseHeader(p[:], most); err != nil {
			return 0, err
		}
		if h.kind != k && (h.kind != kindPing || h.body > 0) {
			return 0, fmt.Errorf("frame of kind %d instead of %d: %w", h.kind, k, ErrProtocol)
		}
	}
	body := make([]byte, h.body)
	if _, err := io.ReadFull(c, body); err != nil {
		return 0, err
	}
	if err := json.Unmarshal(body, m); err != nil {
		return 0, fmt.Errorf("decode a message: %w: %w", ErrProtocol, err)
	}
	return h.status, nil
}

// refused is why a node did not welcome a caller.
type refused struct {
	status status
	text   string
}

func (r *refused) Error() string { return r.text }
func (r *refused) Unwrap() error { return r.status.err() }

func refuse(err error, format string, args ...any) *refused {
	return &refused{statusOf(err), fmt.Sprintf(format, args...)}
}
