package fabrics

import (
	"bytes"
	"crypto/tls"
	"os"
	"testing"
	"time"
)

// replace puts another file's content in a file's place, as an installer does: whole, by a new
// file.
func replace(t *testing.T, file, by string) {
	t.Helper()
	text, err := os.ReadFile(by)
	if err == nil {
		err = os.WriteFile(file+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(file+".new", file)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// serves returns the certificate that c shows to the next connection.
func serves(t *testing.T, c *tls.Config) []byte {
	t.Helper()
	now, err := c.GetConfigForClient(nil)
	if err != nil {
		t.Fatal(err)
	}
	return now.Certificates[0].Certificate[0]
}

// TestRenewedCertificate: a node shows the certificate that its files have, once certificate and
// key fit each other, and the one before until then, or when there is none. Nodes that serve a pool
// do so meanwhile.
func TestRenewedCertificate(t *testing.T) {
	now := time.Now()
	cert, key := certify(t, now.Add(-time.Hour), now.Add(time.Hour))
	nextCert, nextKey := certify(t, now.Add(-time.Hour), now.Add(2*time.Hour))
	old, oldKey := certify(t, now.Add(-2*time.Hour), now.Add(-time.Hour))
	c, err := NodeTLS(cert, key, "")
	if err != nil {
		t.Fatal(err)
	}
	first := serves(t, c)
	replace(t, key, nextKey)
	if !bytes.Equal(serves(t, c), first) {
		t.Error("a certificate with another one's key is shown")
	}
	replace(t, cert, nextCert)
	next := serves(t, c)
	if bytes.Equal(next, first) {
		t.Error("the new certificate is not shown")
	}
	replace(t, cert, old)
	replace(t, key, oldKey)
	if !bytes.Equal(serves(t, c), next) {
		t.Error("a certificate that is not valid is shown")
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(serves(t, c), next) {
		t.Error("no certificate is shown")
	}
}

// TestRenewedInAPool: the nodes of a pool prolong their leases, and clients are let in, when
// certificate and authority have been renewed, and not with the old ones.
func TestRenewedInAPool(t *testing.T) {
	now := time.Now()
	cert, key := certify(t, now.Add(-time.Hour), now.Add(time.Hour))
	nextCert, nextKey := certify(t, now.Add(-time.Hour), now.Add(2*time.Hour))
	before := secret(t, "before", "")
	replace(t, before, cert)
	mutual, err := NodeTLS(cert, key, cert)
	if err != nil {
		t.Fatal(err)
	}
	c := NodeConfig{}
	c.Security.TLS = mutual
	a := serve(t, 3, c)
	t.Setenv(EnvCA, before)
	t.Setenv(EnvCert, before)
	t.Setenv(EnvKey, secret(t, "key", ""))
	replace(t, os.Getenv(EnvKey), key)
	f, err := Create(a.String(), Geometry{Nodes: 3, Memory: 1 << 20, Clients: 4}, write)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	replace(t, key, nextKey)
	replace(t, cert, nextCert)
	if f, err := Open(a.String()); err == nil {
		f.Close()
		t.Error("a client with the certificate of before is let in")
	}
	t.Setenv(EnvCA, nextCert)
	t.Setenv(EnvCert, nextCert)
	t.Setenv(EnvKey, nextKey)
	f, err = Open(a.String())
	if err != nil {
		t.Fatal(err)
	}
	check(t, f)
	f.Close()
}
