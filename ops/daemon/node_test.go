package daemon

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/metrics/metricstest"
	"github.com/farkv/farkv/workloads/runner"
)

// serving runs a node until the test calls end, which returns what the node returned.
func serving(t *testing.T, c NodeConfig) (s *Serving, end func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	ready, ended := make(chan *Serving, 1), make(chan error, 1)
	go func() {
		ended <- ServeNode(ctx, c, func(s *Serving) error {
			ready <- s
			return nil
		})
	}()
	select {
	case s = <-ready:
	case err := <-ended:
		t.Fatalf("it does not serve: %v", err)
	}
	return s, func() error {
		cancel()
		return <-ended
	}
}

func smallNode() NodeConfig {
	return NodeConfig{Listen: "127.0.0.1:0", Memory: 1 << 20, Connections: 16, Drain: time.Second}
}

func TestServeNode(t *testing.T) {
	defer goleak.VerifyNone(t)
	c := smallNode()
	c.Metrics, c.PIDFile = "127.0.0.1:0", filepath.Join(t.TempDir(), "pid")
	s, end := serving(t, c)
	if !s.Loopback || s.Memory != 1<<20 || s.PID != os.Getpid() || s.TLS != "" {
		t.Errorf("%+v", s)
	}
	all, err := ops.Inspect(t.Context(), "tcp:"+s.Address, nil)
	if err != nil || len(all) != 1 || !all[0].Reachable || all[0].InPool || all[0].Offers != 1<<20 {
		t.Errorf("inspect: %+v, %v", all, err)
	}
	for page, says := range map[string]string{"metrics": "farkv_node_memory_bytes 1.048576e+06\n", "healthz": "ok\n"} {
		status, text := metricstest.Fetch(t, strings.TrimSuffix(s.Metrics, "metrics")+page)
		if status != http.StatusOK || !strings.Contains(text, says) {
			t.Errorf("%s: %d, %s", page, status, text)
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(c.PIDFile); !os.IsNotExist(err) {
		t.Errorf("the pid file: %v", err)
	}
	all, err = ops.Inspect(t.Context(), "tcp:"+s.Address, nil)
	if err != nil || all[0].Reachable || all[0].Problem == "" {
		t.Errorf("inspect what has ended: %+v, %v", all, err)
	}
}

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.issue(t, "ca", nil, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	return a
}

// issue writes NAME.pem and NAME.key.
func (a *authority) issue(t *testing.T, name string, by *authority, from, to time.Time) (*x509.Certificate,
	*ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: from,
		NotAfter:    to,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: by == nil,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".pem", "CERTIFICATE", der)
	a.write(t, name+".key", "PRIVATE KEY", secret)
	return cert, key
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(a.file(name), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// A node with TLS refuses a peer that does not use TLS, or that has no certificate of the node's
// authority.
func TestNodeTLS(t *testing.T) {
	defer goleak.VerifyNone(t)
	a := newAuthority(t)
	now := time.Now()
	a.issue(t, "node", a, now.Add(-time.Hour), now.Add(time.Hour))
	other := newAuthority(t)
	other.issue(t, "stranger", other, now.Add(-time.Hour), now.Add(time.Hour))
	c := smallNode()
	c.TLSCert, c.TLSKey, c.TLSCA = a.file("node.pem"), a.file("node.key"), a.file("ca.pem")
	s, end := serving(t, c)
	if s.TLS != "mutual" {
		t.Errorf("%+v", s)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	for name, own := range map[string]*authority{"node": a, "stranger": other} {
		cert, err := tls.LoadX509KeyPair(own.file(name+".pem"), own.file(name+".key"))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := tls.Dial("tcp", s.Address, &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}})
		if err == nil {
			conn.SetDeadline(time.Now().Add(time.Minute))
			_, err = conn.Read(make([]byte, 1)) // with TLS 1.3 the node's refusal comes behind the handshake
			conn.Close()
		}
		if strings.Contains(errText(err), "certificate") == (own == a) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if all, err := ops.Inspect(t.Context(), "tcp:"+s.Address, nil); err != nil || all[0].Reachable {
		t.Errorf("without TLS: %+v, %v", all, err)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	c.TLSCA = ""
	if s, end = serving(t, c); s.TLS != "on" {
		t.Errorf("%+v", s)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// What a certificate lacks is said before anything is served.
func TestCertificates(t *testing.T) {
	a, now := newAuthority(t), time.Now()
	a.issue(t, "node", a, now.Add(-time.Hour), now.Add(time.Hour))
	a.issue(t, "old", a, now.Add(-2*time.Hour), now.Add(-time.Hour))
	a.issue(t, "early", a, now.Add(time.Hour), now.Add(2*time.Hour))
	for _, tt := range []struct {
		cert, key, ca, says string
		misuse              bool
	}{
		{"node.pem", "node.key", "", "", false},
		{"node.pem", "node.key", "ca.pem", "", false},
		{"old.pem", "old.key", "", "old.pem cannot be used: it expired on ", false},
		{"early.pem", "early.key", "", "it is valid from ", false},
		{"node.pem", "old.key", "", "private key does not match", false},
		{"node.pem", "nosuch", "", "nosuch: no such file", false},
		{"node.pem", "node.key", "node.key", "there is none in PEM", false},
		{"node.pem", "node.key", "nosuch", "nosuch: no such file", false},
		{"node.pem", "", "", "belong together", true},
		{"", "", "ca.pem", "--tls-ca needs them", true},
	} {
		at := func(name string) string {
			if name == "" {
				return ""
			}
			return a.file(name)
		}
		c := smallNode()
		c.TLSCert, c.TLSKey, c.TLSCA = at(tt.cert), at(tt.key), at(tt.ca)
		err := c.secure(new(fabrics.NodeConfig))
		if !strings.Contains(errText(err), tt.says) || (err == nil) != (tt.says == "") ||
			runner.Misused(err) != tt.misuse {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}
