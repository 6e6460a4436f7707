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

// tokenFile is the token's name in a run folder; tokenBytes is the length of the random secret.
const (
	tokenFile  = "token"
	tokenBytes = 32
)

// MakeToken makes the token that the pool's nodes will require, and returns the path of its file.
// Only this user can read it. It is removed with the run folder.
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

// TokenFile returns the path of the token of a pool here that has a node at one of the addresses,
// HOST:PORT each; "": there is no such pool, or it has no token. Run folders that cannot be trusted
// or read are ignored: the addresses may belong to other machines.
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

// servesOne reports whether a live process of the pool serves at one of the addresses. A process
// that has ended does not count: another one may use its port now.
func (p *Pool) servesOne(addresses []string) bool {
	for i, n := range p.Nodes {
		if slices.Contains(addresses, n.Address) && p.Alive(i) {
			return true
		}
	}
	return false
}
