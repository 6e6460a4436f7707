package local

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

const (
	tokenFile  = "token"
	tokenBytes = 32 // of randomness
)

// MakeToken makes the token that the pool's nodes ask for, and returns the path of its file, which
// only this user can read. It goes with the run folder.
func (p *Pool) MakeToken() (path string, err error) {
	secret := make([]byte, tokenBytes)
	rand.Read(secret) // never fails
	path = filepath.Join(p.folder, tokenFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", fmt.Errorf("make the token of %s: %w", p.Name, err)
	}
	_, err = f.WriteString(hex.EncodeToString(secret) + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("make the token of %s: %w", p.Name, err)
	}
	return path, nil
}

// TokenFile returns the path of the token of the pool that has a node at one of the addresses,
// HOST:PORT each, where MakeToken made one; "": no pool here has. Run folders that cannot be
// trusted, or read, count as absent: the addresses may be of other machines.
func TokenFile(addresses []string) (path string) {
	names, err := List()
	if err != nil {
		return ""
	}
	for _, name := range names {
		p, err := Open(name)
		if err != nil || !p.servesOne(addresses) {
			continue
		}
		path := filepath.Join(p.folder, tokenFile)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return path
		}
	}
	return ""
}

// servesOne reports whether a process of the pool serves at one of the addresses: another one may
// have the port of one that ended.
func (p *Pool) servesOne(addresses []string) bool {
	for i, n := range p.Nodes {
		if slices.Contains(addresses, n.Address) && p.Alive(i) {
			return true
		}
	}
	return false
}
