package transport

import (
	"encoding/binary"
	"fmt"

	"github.com/farkv/farkv/node/version"
)

// VersionError says that the two ends of a connection speak different versions. It wraps
// ErrProtocol. Peer is as the end that found it knows the other one: Dial puts in the address
// that its user gave.
type VersionError struct {
	Peer         string // the other end: "node HOST:PORT" or "client HOST:PORT"
	Self         string // "program" or "node"
	What         string // "wire" or "control"
	Theirs, Ours int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s speaks %s version %d, this %s %d: use the same farkv on both", e.Peer, e.What,
		e.Theirs, e.Self, e.Ours)
}

// Unwrap makes it an ErrProtocol.
func (e *VersionError) Unwrap() error { return ErrProtocol }

// putVersions writes this build's versions into a greeting. Bytes 12 to 15 stay 0.
func (g *Greeting) putVersions() {
	binary.LittleEndian.PutUint16(g[8:], version.Wire)
	binary.LittleEndian.PutUint16(g[10:], version.Control)
}

// checkVersions compares the other end's versions with this build's. The wire comes first: it
// says where the others are. Both have to be equal to this build's: neither end speaks an older
// version. Nothing behind a greeting of another version is read. The error is a VersionError.
func (g *Greeting) checkVersions(peer, self string) error {
	for _, v := range []struct {
		what   string
		theirs uint16
		ours   int
	}{
		{"wire", binary.LittleEndian.Uint16(g[8:]), version.Wire},
		{"control", binary.LittleEndian.Uint16(g[10:]), version.Control},
	} {
		if int(v.theirs) != v.ours {
			return &VersionError{Peer: peer, Self: self, What: v.what, Theirs: int(v.theirs), Ours: v.ours}
		}
	}
	return nil
}
