package fabrics

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/rdma/transport"
)

// The environment of clients of tcp: and consul: pools.
const (
	EnvToken     = "FARKV_TOKEN_FILE"      // the file that holds the pool's token
	EnvReadToken = "FARKV_READ_TOKEN_FILE" // the one with which nothing but reading is possible, instead
	EnvCA        = "FARKV_TLS_CA"          // PEM file of the CAs of the nodes; TLS is used when it is set
	EnvCert      = "FARKV_TLS_CERT"        // PEM files of the client's own certificate and key, where nodes ask for one
	EnvKey       = "FARKV_TLS_KEY"
)

// ErrSecret is wrapped when a file of a token, a key or a certificate cannot be used.
var ErrSecret = errors.New("cannot be used")

var administers atomic.Bool

// Administer says whether this process operates pools: if so, what it opens from now on may use the
// connections that memory nodes keep in reserve for such commands.
func Administer(yes bool) { administers.Store(yes) }

// Security returns what a client needs to be let in, as the environment says.
func Security() (s transport.Security, err error) {
	s.Admin = administers.Load()
	if s.Token, err = tokenOf(EnvToken); err != nil {
		return s, err
	}
	if s.ReadToken, err = tokenOf(EnvReadToken); err != nil {
		return s, err
	}
	ca, cert, key := os.Getenv(EnvCA), os.Getenv(EnvCert), os.Getenv(EnvKey)
	if ca == "" {
		if cert != "" || key != "" {
			return s, fmt.Errorf("%s and %s %w without %s", EnvCert, EnvKey, ErrSecret, EnvCA)
		}
		return s, nil
	}
	roots, err := pool(ca)
	if err != nil {
		return s, fmt.Errorf("%s: %w", EnvCA, err)
	}
	s.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	if cert != "" || key != "" {
		if s.TLS.Certificates, err = pair(cert, key); err != nil {
			return s, fmt.Errorf("%s, %s: %w", EnvCert, EnvKey, err)
		}
	}
	return s, nil
}

// securityOf returns what clients need to be admitted by the nodes at some addresses. If 'farkv up'
// started these nodes on this machine, it is the token of their pool; otherwise it is what the
// environment says.
func securityOf(nodes []string) (transport.Security, error) {
	file := local.TokenFile(nodes)
	if file == "" {
		return Security()
	}
	token, err := ReadToken(file)
	return transport.Security{Token: token, Admin: administers.Load()}, err
}

func tokenOf(variable string) ([]byte, error) {
	file := os.Getenv(variable)
	if file == "" {
		return nil, nil
	}
	token, err := ReadToken(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	return token, nil
}

// A token is long enough not to be guessed, and short enough to be one.
const leastToken, mostToken = 16, 4096

// ReadToken reads a token from a file that only its owner can read or write. White space around it
// does not count.
func ReadToken(file string) ([]byte, error) {
	text, err := readSecret("token", file)
	if err != nil {
		return nil, err
	}
	token := bytes.TrimSpace(text)
	if len(token) < leastToken || len(token) > mostToken {
		return nil, fmt.Errorf(
			"token %s %w: it has %d bytes, and %d to %d are wanted (hint: openssl rand -hex 32 > %s)", file, ErrSecret,
			len(token), leastToken, mostToken, file)
	}
	return token, nil
}

// mostSecret bounds what is read of a file of a token or a key: several times the largest.
const mostSecret = 1 << 20

// readSecret reads a file that only its owner can read or write. What is checked is the file that
// is read, whatever its name means a moment later. kind is a word for messages.
func readSecret(kind, file string) (text []byte, err error) {
	f, err := os.Open(file)
	if err == nil {
		defer f.Close()
		var st os.FileInfo
		if st, err = f.Stat(); err == nil && st.Mode().Perm()&0o077 != 0 {
			return nil, fmt.Errorf("%s %s %w: others can read or write it (hint: chmod 600 %s)", kind, file, ErrSecret,
				file)
		}
	}
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(f, mostSecret))
	}
	if err != nil {
		return nil, fmt.Errorf("%s %w: %w", kind, ErrSecret, err)
	}
	return text, nil
}

// NodeTLS returns a node's side of TLS: its certificate and key, and, unless ca is "", the signers
// of the clients that it lets in. Nodes call each other with the same certificate, and trust the
// same signers; without ca the system's, and those in the certificate's own file: a private
// authority's certificate is appended there. Files that are replaced later hold for new
// connections.
func NodeTLS(cert, key, ca string) (*tls.Config, error) {
	r := &renewing{cert: cert, key: key, ca: ca}
	r.seen = r.versions() // before they are read: what is written meanwhile is read again
	c, err := readTLS(cert, key, ca)
	if err != nil {
		return nil, err
	}
	r.last = c.Clone()
	c.GetConfigForClient = r.config
	return c, nil
}

// readTLS reads a node's side of TLS.
func readTLS(cert, key, ca string) (*tls.Config, error) {
	certs, err := pair(cert, key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{Certificates: certs, MinVersion: tls.VersionTLS13}
	if ca == "" {
		if c.RootCAs, err = x509.SystemCertPool(); err != nil {
			c.RootCAs = x509.NewCertPool()
		}
		for _, der := range certs[0].Certificate {
			if signer, err := x509.ParseCertificate(der); err == nil {
				c.RootCAs.AddCert(signer)
			}
		}
	}
	if ca != "" {
		if c.ClientCAs, err = pool(ca); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// pair reads a certificate and its key, which only its owner may be able to read. A certificate
// that is not valid now is of no use, and says so here rather than to every caller.
func pair(cert, key string) ([]tls.Certificate, error) {
	secret, err := readSecret("key", key)
	if err != nil {
		return nil, err
	}
	public, err := os.ReadFile(cert)
	if err != nil {
		return nil, fmt.Errorf("certificate %w: %w", ErrSecret, err)
	}
	c, err := tls.X509KeyPair(public, secret)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s %w: %w", cert, key, ErrSecret, err)
	}
	switch now := time.Now(); {
	case now.After(c.Leaf.NotAfter):
		return nil, fmt.Errorf("certificate %s %w: it expired on %s", cert, ErrSecret,
			c.Leaf.NotAfter.Format(time.DateOnly))
	case now.Before(c.Leaf.NotBefore):
		return nil, fmt.Errorf("certificate %s %w: it is valid from %s on", cert, ErrSecret,
			c.Leaf.NotBefore.Format(time.DateOnly))
	}
	return []tls.Certificate{c}, nil
}

func pool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("certificates %w: %w", ErrSecret, err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("certificates of %s %w: there is none in PEM", file, ErrSecret)
	}
	return p, nil
}
