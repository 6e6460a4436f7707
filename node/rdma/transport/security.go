package transport

import "crypto/tls"

// Security is what the two ends of a connection ask of each other.
type Security struct {
	// Token is known to all that may use the pool; nil: there is none, and nodes listen on loopback
	// only. It is proved by challenge and response, never sent.
	Token []byte
	// ReadToken lets a client that does not know Token READ, and do nothing more. A client sets one
	// of the two.
	ReadToken []byte
	// Admin has nodes that have as many connections as they take let a client in, a few at a time,
	// if it knows the full token: for commands that look at a pool, or end it.
	Admin bool
	// TLS wraps the connections; nil: they are plain. Nodes that ask for clients' certificates say
	// so in it.
	TLS *tls.Config
}

// ReadsOnly reports whether a process may do nothing but read: it knows the read token alone.
func (s *Security) ReadsOnly() bool { return len(s.Token) == 0 && len(s.ReadToken) > 0 }
