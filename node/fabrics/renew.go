package fabrics

import (
	"crypto/tls"
	"os"
	"slices"
	"sync"
	"time"
)

// A renewing is a node's side of TLS as its files have it now, so that a certificate is renewed
// without a restart, which costs a node all that it holds. New connections use it; those that there
// are go on with what they began with. It is safe for concurrent use.
type renewing struct {
	cert, key, ca string

	mu   sync.Mutex
	seen []version // of the files, when they were read last
	last *tls.Config
}

// version is what differs once a file was replaced or written to.
type version struct {
	at   time.Time
	size int64
	file os.FileInfo
}

func (v version) same(o version) bool {
	return v.at.Equal(o.at) && v.size == o.size && os.SameFile(v.file, o.file)
}

// config returns the configuration by the files as they are now. If the files do not fit together,
// such as a certificate before its key is there, the last ones that did are used, and the files are
// read again with the next connection.
func (r *renewing) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.versions()
	if now == nil || slices.EqualFunc(now, r.seen, version.same) {
		return r.last, nil
	}
	if c, err := readTLS(r.cert, r.key, r.ca); err == nil {
		r.seen, r.last = now, c
	}
	return r.last, nil
}

// versions returns those of the files; nil: one of them is not there.
func (r *renewing) versions() (all []version) {
	for _, name := range []string{r.cert, r.key, r.ca} {
		if name == "" {
			continue
		}
		st, err := os.Stat(name)
		if err != nil {
			return nil
		}
		all = append(all, version{st.ModTime(), st.Size(), st})
	}
	return all
}
