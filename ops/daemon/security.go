package daemon

import (
	"bytes"
	"crypto/tls"
	"fmt"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads"
)

// secure sets how a node authenticates its peers. Without a token it may listen on the loopback
// only.
func (c *NodeConfig) secure(n *fabrics.NodeConfig) error {
	s := &n.Security
	for _, t := range []struct {
		flag, file string
		token      *[]byte
	}{{"--token-file", c.TokenFile, &s.Token}, {"--read-token-file", c.ReadTokenFile, &s.ReadToken}} {
		if t.file == "" {
			continue
		}
		var err error
		if *t.token, err = fabrics.ReadToken(t.file); err != nil {
			return fmt.Errorf("%s: %w", t.flag, err)
		}
	}
	local, err := loopback(c.Listen)
	switch {
	case err != nil:
		return err
	case s.ReadToken != nil && s.Token == nil:
		return workloads.Usagef("--read-token-file without --token-file: then no client could write")
	case s.Token != nil && bytes.Equal(s.Token, s.ReadToken):
		return workloads.Usagef("--read-token-file %s holds the same token as --token-file: readers could write",
			c.ReadTokenFile)
	case s.Token == nil && !local:
		return workloads.Usagef("--listen %s: without a token a node listens on the loopback only (hint: "+
			"--token-file FILE; 'farkv help tcp' tells how to make one)", c.Listen)
	case c.TLSCert == "" && c.TLSKey == "" && c.TLSCA == "":
		return nil
	case c.TLSCert == "" || c.TLSKey == "":
		return workloads.Usagef("--tls-cert and --tls-key belong together, and --tls-ca needs them")
	}
	if s.TLS, err = fabrics.NodeTLS(c.TLSCert, c.TLSKey, c.TLSCA); err != nil {
		return fmt.Errorf("TLS: %w", err)
	}
	return nil
}

// tlsMode tells in a word how connections are encrypted; "": they are not.
func tlsMode(c *tls.Config) string {
	switch {
	case c == nil:
		return ""
	case c.ClientAuth == tls.RequireAndVerifyClientCert:
		return "mutual"
	}
	return "on"
}
