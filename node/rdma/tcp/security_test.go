package tcp_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
)

var token, readToken = []byte("a token of thirty-two bytes, aye"), []byte("another one, with which one reads")

// journal is a log that tests look into.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) count(what string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Count(j.text.String(), what)
}

// guarded starts nodes that want something of their callers.
func guarded(t testing.TB, n int, s transport.Security) (nodes []*memnode.Node, addrs []string, log *journal) {
	t.Helper()
	log = new(journal)
	for range n {
		node, err := memnode.Listen(memnode.Config{
			Listen: "127.0.0.1:0", Memory: 1 << 20, Handler: addByCall, Security: s,
			Log: slog.New(slog.NewTextHandler(log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { node.Close() })
		nodes, addrs = append(nodes, node), append(addrs, node.Addr())
	}
	return nodes, addrs, log
}

func geometry(n int) control.Geometry { return control.Geometry{Nodes: n, Memory: 1 << 20, Clients: 8} }

// TestTokens calls nodes with other tokens than theirs, and without.
func TestTokens(t *testing.T) {
	t.Parallel()
	nodes, addrs, log := guarded(t, 3, transport.Security{Token: token, ReadToken: readToken})
	created(t, control.Options{Addresses: addrs, Security: transport.Security{Token: token}}, geometry(3))
	almost := bytes.Clone(token)
	almost[len(almost)-1] ^= 1
	refused := uint64(0)
	for name, s := range map[string]transport.Security{
		"no token": {}, "an empty one": {Token: []byte{}}, "one that differs in a bit": {Token: almost},
		"a shorter one": {Token: token[:31]}, "a longer one": {Token: append(bytes.Clone(token), 'x')},
		"the read token as the other": {Token: []byte("another one, with which one read")},
	} {
		_, err := tcp.Open(control.Options{Addresses: addrs, Security: s})
		if !errors.Is(err, transport.ErrToken) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := tcp.Create(control.Options{Addresses: addrs, Security: s}, geometry(3),
			nil); !errors.Is(err, transport.ErrToken) {
			t.Errorf("%s: a pool was made: %v", name, err)
		}
		if err := control.Remove(control.Options{Addresses: addrs, Security: s}, true); !errors.Is(err,
			transport.ErrToken) {
			t.Errorf("%s: the pool was removed: %v", name, err)
		}
		refused += 2
	}
	eventually(t, "all failures are counted", func() bool { return nodes[0].Stats().AuthFailures >= refused })
	if s := nodes[0].Stats(); s.RefusedRoom+s.RefusedVersion > 0 || s.Refused >= s.AuthFailures {
		t.Errorf("%d wrong tokens count as %+v", refused, s)
	}
	if n := log.count(`why="wrong token"`); n != 3 {
		t.Errorf("three nodes logged %d times that they refuse connections, want once each", n)
	}
	if log.count(string(token)) > 0 {
		t.Error("the token is in the log")
	}
	_, addrs, _ = guarded(t, 1, transport.Security{})
	_, err := tcp.Open(control.Options{Addresses: addrs, Security: transport.Security{Token: token}})
	if !errors.Is(err, transport.ErrToken) || !strings.Contains(err.Error(), "without one") {
		t.Errorf("a token for nodes that know none: %v", err)
	}
}

// TestTokenIsNotSent looks at all that goes over the wire.
func TestTokenIsNotSent(t *testing.T) {
	_, addrs, _ := guarded(t, 1, transport.Security{Token: token})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var said journal
	var group sync.WaitGroup
	group.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		n, err := net.Dial("tcp", addrs[0])
		if err != nil {
			return
		}
		defer n.Close()
		group.Go(func() { io.Copy(io.MultiWriter(c, &said), n); c.Close() })
		io.Copy(io.MultiWriter(n, &said), c)
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	infos, errs := control.Inspect(ctx, control.Options{Addresses: []string{l.Addr().String()},
		Security: transport.Security{Token: token}})
	l.Close()
	group.Wait()
	if errs[0] != nil || infos[0].Memory != 1<<20 {
		t.Fatalf("%+v, %v", infos, errs)
	}
	if said.count("hello") == 0 && said.count("purpose") == 0 || said.count(string(token)) > 0 ||
		said.count(string(token[:8])) > 0 {
		t.Errorf("the token was sent in clear: %q", said.text.String())
	}
}

// TestListenWithoutToken wants nodes without a token to be out of reach of other machines.
func TestListenWithoutToken(t *testing.T) {
	for _, s := range []transport.Security{{}, {Token: []byte{}}, {ReadToken: readToken}} {
		n, err := memnode.Listen(memnode.Config{Listen: "0.0.0.0:0", Memory: 1 << 20, Security: s})
		if !errors.Is(err, memnode.ErrOpen) {
			t.Errorf("%+v: %v", s, err)
		}
		if err == nil {
			n.Close()
		}
	}
	n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: 1 << 20,
		Security: transport.Security{ReadToken: readToken}})
	if !errors.Is(err, memnode.ErrOpen) {
		t.Errorf("a read token, and none to write: a client without a token may write: %v", err)
	}
	if err == nil {
		n.Close()
	}
}

// TestReadToken does everything with a token that permits to read.
func TestReadToken(t *testing.T) {
	_, addrs, _ := guarded(t, 3, transport.Security{Token: token, ReadToken: readToken})
	f := created(t, control.Options{Addresses: addrs, Security: transport.Security{Token: token}}, geometry(3))
	writer := attach(t, f, "writer")
	if err := store(writer, 0, 8, []byte{7}); err != nil {
		t.Fatal(err)
	}
	reading := control.Options{Addresses: addrs, Security: transport.Security{ReadToken: readToken}}
	r := opened(t, reading)
	reader := func() rdma.Endpoint { return attach(t, r, "reader") }
	ep := reader()
	if v, err := load(ep, 0, 8); v != 7 || err != nil || ep.Client() != 0 {
		t.Errorf("READ by client %d: %d, %v", ep.Client(), v, err)
	}
	if v, err := ep.Join(); err != nil || len(v.Members) != 3 {
		t.Errorf("join: %+v, %v", v, err)
	}
	call := rdma.Request{Arg: [6]uint64{8}}
	if err := reader().Call(0, &call, limit); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("call: %v", err)
	}
	for name, op := range map[string]func(b *rdma.Batch) *rdma.Op{
		"WRITE":      func(b *rdma.Batch) *rdma.Op { return b.Write(rdma.At(0, 8), b.Alloc(8)) },
		"CAS":        func(b *rdma.Batch) *rdma.Op { return b.CompareSwap(rdma.At(0, 8), 7, 8) },
		"masked CAS": func(b *rdma.Batch) *rdma.Op { return b.MaskedCompareSwap(rdma.At(0, 8), 7, 7, 8, 8) },
		"FAA":        func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, 8), 1) },
	} {
		if _, err := do(reader(), op); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if v, err := load(ep, 0, 8); v != 7 || err != nil {
		t.Errorf("READ by a reader that did not stray, when others had: %d, %v", v, err)
	}
	_, advanced := r.Advance(rdma.State{}, rdma.State{Epoch: 1})
	_, master, mastered := r.TryMaster(1, time.Second)
	for what, err := range map[string]error{
		"advance": advanced, "master": mastered, "fence": r.Fence(9), "revoke": r.Revoke(writer.Client()),
		"expel": r.Expel(1, 0), "remove": control.Remove(reading, true),
	} {
		if err == nil || master {
			t.Errorf("%s succeeded", what)
		}
	}
	r.Close() // and says goodbye, for no other process
	if v, err := load(writer, 0, 8); v != 7 || err != nil {
		t.Errorf("after all that, the word is %d (%v)", v, err)
	}
	if _, err := add(writer, 0, 8); err != nil || f.View().Epoch != 0 {
		t.Errorf("the writer: %v, in epoch %d", err, f.View().Epoch)
	}
	if all := f.Clients(); len(all) != 1 || !all[0].Alive {
		t.Errorf("clients: %+v", all)
	}
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	c := a.sign(t, time.Now().Add(time.Hour), true)
	a.cert = c.Leaf
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(t testing.TB, until time.Time, isCA bool) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "farkv test"}, NotBefore: until.Add(-48 * time.Hour),
		NotAfter: until, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IsCA: isCA,
		BasicConstraintsValid: true,
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer, a.key = c, key, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// TestTLS calls nodes that want TLS, and a certificate, in each way that is right or wrong.
func TestTLS(t *testing.T) {
	t.Parallel()
	ours, others := newAuthority(t), newAuthority(t)
	own := ours.sign(t, time.Now().Add(time.Hour), false)
	client := func(roots *authority, certs ...tls.Certificate) transport.Security {
		return transport.Security{Token: token, TLS: &tls.Config{RootCAs: roots.pool, Certificates: certs,
			MinVersion: tls.VersionTLS13}}
	}
	oneWay := &tls.Config{Certificates: []tls.Certificate{own}, RootCAs: ours.pool, MinVersion: tls.VersionTLS13}
	mutual := oneWay.Clone()
	mutual.RootCAs, mutual.ClientCAs, mutual.ClientAuth = nil, ours.pool, tls.RequireAndVerifyClientCert
	expired := oneWay.Clone()
	expired.Certificates = []tls.Certificate{ours.sign(t, time.Now().Add(-time.Hour), false)}
	for _, c := range []struct {
		name   string
		node   *tls.Config
		client transport.Security
		want   string // of the error; "": none
	}{
		{"TLS", oneWay, client(ours), ""},
		{"mutual TLS", mutual, client(ours, own), ""},
		{"no certificate of the client", mutual, client(ours), "certificate required"},
		{"a client's certificate of others", mutual, client(ours, others.sign(t, time.Now().Add(time.Hour), false)),
			"certificate"},
		{"a client's certificate that expired", mutual, client(ours, expired.Certificates[0]), "certificate"},
		{"a node's certificate of others", oneWay, client(others), "unknown authority"},
		{"a node's certificate that expired", expired, client(ours), "expired"},
		{"a plain client", oneWay, transport.Security{Token: token}, "perhaps the two ends do not agree on TLS"},
		{"a plain node", nil, client(ours), "perhaps the two ends do not agree on TLS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nodes, addrs, log := guarded(t, 3, transport.Security{Token: token, TLS: c.node})
			f, err := tcp.Create(control.Options{Addresses: addrs, Security: c.client}, geometry(3), nil)
			if c.want != "" {
				if !errors.Is(err, transport.ErrTLS) || !strings.Contains(err.Error(), c.want) ||
					strings.Contains(err.Error(), "\n") {
					t.Errorf("error is %v, want ErrTLS and %q in one line", err, c.want)
				}
				for range 3 {
					tcp.Open(control.Options{Addresses: addrs, Security: c.client})
				}
				eventually(t, "the refusal is counted", func() bool {
					s := nodes[0].Stats()
					if c.node == nil { // and so it reads what is no greeting
						return s.Refused >= 3 && s.AuthFailures == 0
					}
					return s.AuthFailures >= 3 && s.Refused == 0
				})
				reason := "reason=auth"
				if c.node == nil {
					// and perhaps reason=silent, of a client that gave up before it had said
					// anything
					reason = "reason=rules"
				}
				if n := log.count(reason); n != 3 {
					t.Errorf("three nodes logged %d refusals with %s, want once each", n, reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			ep := attach(t, f, "client")
			for node := range 3 { // each holds leases of its peers
				if _, err := add(ep, node, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestPeersThatDoNotTrust has nodes that cannot call each other: they say so, once, instead of
// standing still without a word.
func TestPeersThatDoNotTrust(t *testing.T) {
	a := newAuthority(t)
	node := &tls.Config{Certificates: []tls.Certificate{a.sign(t, time.Now().Add(time.Hour), false)},
		MinVersion: tls.VersionTLS13}
	_, addrs, log := guarded(t, 3, transport.Security{Token: token, TLS: node})
	f := created(t, control.Options{
		Addresses: addrs,
		Security:  transport.Security{Token: token, TLS: &tls.Config{RootCAs: a.pool, MinVersion: tls.VersionTLS13}},
		Lease:     50 * time.Millisecond,
	}, geometry(3))
	_ = f
	eventually(t, "each node says that two peers grant nothing", func() bool {
		return log.count("a peer grants no leases") == 6
	})
	time.Sleep(100 * time.Millisecond)
	if n := log.count("a peer grants no leases"); n != 6 {
		t.Errorf("logged %d times", n)
	}
}
