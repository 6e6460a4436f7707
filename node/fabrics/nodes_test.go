package fabrics

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// serve starts memory nodes that end with the test, and returns their address.
func serve(t *testing.T, n int, c NodeConfig) Address {
	t.Helper()
	a := Address{Scheme: "tcp"}
	for range n {
		c.Listen, c.Memory = "127.0.0.1:0", 1<<20
		node, err := Serve(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { node.Close() })
		a.Nodes = append(a.Nodes, node.Addr())
	}
	return a
}

// TestNodes makes, opens and removes a pool on nodes: two that hold memory, and a witness.
func TestNodes(t *testing.T) {
	a := serve(t, 3, NodeConfig{})
	two := Geometry{Nodes: 2, Memory: 1 << 20, Clients: 4}
	if _, err := Create("tcp:"+a.Nodes[0], two, nil); !errors.Is(err, ErrAddress) {
		t.Errorf("two nodes on one: %v", err)
	}
	if _, err := Open(a.String()); !errors.Is(err, ErrNoPool) {
		t.Errorf("opened before it is made: %v", err)
	}
	f, err := Create(a.String(), two, func(f rdma.Fabric) error {
		if _, err := Open(a.String()); !errors.Is(err, ErrNoPool) {
			t.Errorf("opened while it is made: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	check := func(f rdma.Fabric) {
		t.Helper()
		if g := f.(rdma.Geometer).Geometry(); g.Nodes != 2 || g.Clients != 4 || f.Size() != 1<<20 || f.Nodes() != 2 {
			t.Errorf("its shape is %+v", g)
		}
	}
	check(f)
	if over := f.(rdma.CarrierNamer).Carrier(); over != a.Scheme {
		t.Errorf("its verbs go over %s", over)
	}
	if _, err := Create(a.String(), two, nil); !errors.Is(err, ErrExists) {
		t.Errorf("made twice: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	again, err := Open("tcp:" + a.Nodes[1]) // by one of its nodes
	if err != nil {
		t.Fatal(err)
	}
	check(again)
	ep, err := again.Open("user")
	if err != nil {
		t.Fatal(err)
	}
	if err := Remove(a.String(), false); !errors.Is(err, ErrInUse) {
		t.Errorf("removed while it has a client: %v", err)
	}
	infos, errs, err := Inspect(context.Background(), Address{Scheme: "tcp", Nodes: a.Nodes[:1]}, nil)
	if err != nil || errors.Join(errs...) != nil || len(infos) != 3 || infos[2].Pool == nil ||
		infos[2].Pool.Index != 2 {
		t.Errorf("inspected by one node: %+v, %v, %v", infos, errs, err)
	}
	if err := errors.Join(ep.Close(), again.Close(), Remove(a.String(), false)); err != nil {
		t.Error(err)
	}
	if _, err := Open(a.String()); !errors.Is(err, ErrNoPool) {
		t.Errorf("opened after it was removed: %v", err)
	}
}

// secret writes a file that only its owner can read.
func secret(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestToken(t *testing.T) {
	good := secret(t, "token", "  0123456789abcdef0123456789abcdef\n")
	open := secret(t, "open", "0123456789abcdef")
	if err := os.Chmod(open, 0o640); err != nil {
		t.Fatal(err)
	}
	for file, says := range map[string]string{
		good: "", open: "others can read", secret(t, "short", "abc"): "16 to 4096", filepath.Join(t.TempDir(),
			"none"): "no such file",
		secret(t, "long", strings.Repeat("x", 5000)): "16 to 4096",
	} {
		token, err := ReadToken(file)
		if says == "" && (err != nil || string(token) != "0123456789abcdef0123456789abcdef") ||
			says != "" && (!errors.Is(err, ErrSecret) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %q, %v", filepath.Base(file), token, err)
		}
	}
	token, _ := ReadToken(good)
	c := NodeConfig{}
	c.Security.Token = token
	a := serve(t, 1, c)
	if _, err := Create(a.String(), small, nil); !errors.Is(err, ErrToken) {
		t.Errorf("without a token: %v", err)
	}
	t.Setenv(EnvToken, secret(t, "other", "ffffffffffffffffffffffffffffffff"))
	if _, err := Create(a.String(), small, nil); !errors.Is(err, ErrToken) {
		t.Errorf("with another token: %v", err)
	}
	t.Setenv(EnvToken, good)
	f, err := Create(a.String(), small, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// certify writes a certificate, signed by itself, and its key.
func certify(t *testing.T, from, to time.Time) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}, NotBefore: from, NotAfter: to, IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, p []byte) string {
		return secret(t, strings.ToLower(kind[:4]), string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: p})))
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", private)
}

func TestTLS(t *testing.T) {
	now := time.Now()
	cert, key := certify(t, now.Add(-time.Hour), now.Add(time.Hour))
	old, oldKey := certify(t, now.Add(-2*time.Hour), now.Add(-time.Hour))
	for _, c := range []struct{ cert, key, ca, says string }{
		{old, oldKey, "", "expired on"}, {cert, oldKey, "", "does not match"}, {"none", key, "", "no such file"}, {cert,
			key, key, "there is none in PEM"},
	} {
		if _, err := NodeTLS(c.cert, c.key, c.ca); !errors.Is(err, ErrSecret) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	oneWay, err := NodeTLS(cert, key, "")
	if err != nil {
		t.Fatal(err)
	}
	c := NodeConfig{}
	c.Security.TLS = oneWay
	three := Geometry{Nodes: 3, Memory: 1 << 20, Clients: 4}
	t.Setenv(EnvCA, cert)
	f, err := Create(serve(t, 3, c).String(), three, write) // nodes that do not trust each other serve no client
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	t.Setenv(EnvCA, "")
	mutual, err := NodeTLS(cert, key, cert)
	if err != nil {
		t.Fatal(err)
	}
	c.Security.TLS = mutual
	a := serve(t, 3, c)
	if _, err := Create(a.String(), three, nil); err == nil {
		t.Error("a plain client was let in")
	}
	t.Setenv(EnvCert, cert)
	if _, err := Create(a.String(), three, nil); !errors.Is(err, ErrSecret) {
		t.Errorf("a certificate without the CA of the nodes': %v", err)
	}
	t.Setenv(EnvCert, "")
	t.Setenv(EnvCA, cert)
	if _, err := Create(a.String(), three, nil); err == nil {
		t.Error("a client without a certificate was let in")
	}
	t.Setenv(EnvCert, cert)
	t.Setenv(EnvKey, key)
	f, err = Create(a.String(), three, write)
	if err != nil {
		t.Fatal(err)
	}
	check(t, f)
	f.Close()
	exposed(t, key)
	if _, err := Create(a.String(), three, nil); !errors.Is(err, ErrSecret) ||
		!strings.Contains(err.Error(), "hint: chmod 600 "+key) {
		t.Errorf("a client's key that others can read: %v", err)
	}
	if _, err := NodeTLS(cert, key, ""); !errors.Is(err, ErrSecret) ||
		!strings.Contains(err.Error(), "others can read or write it") {
		t.Errorf("a node's key that others can read: %v", err)
	}
}

// exposed lets others read a file.
func exposed(t *testing.T, file string) {
	t.Helper()
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
}
