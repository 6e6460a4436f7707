package shm

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

// NewMem makes a pool that only this process sees; it ends with the process, or with the Close of
// the fabric and of the last endpoint. h serves calls; nil: there are none. Untouched memory costs
// nothing.
func NewMem(g Geometry, h rdma.Handler) (*Fabric, error) {
	if err := g.check(); err != nil {
		return nil, fmt.Errorf("make mem: pool: %w", err)
	}
	// MAP_NORESERVE: a pool may be larger than the machine's memory as long as less of it is
	// touched.
	m, err := unix.Mmap(-1, 0, int(g.size()), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("make mem: pool: map %d bytes: %w", g.size(), err)
	}
	g.encode(m)
	return newFabric("mem:", g, m, &ownLives{of: map[rdma.ClientID]bool{}}, anonymous{}, h), nil
}

// ownLives are those of one process's clients: they end by Close alone. of has those that are
// held, 0 for the configuration's lock among them. mu guards it. No method waits, or fails.
type ownLives struct {
	mu sync.Mutex
	of map[rdma.ClientID]bool
}

func (l *ownLives) take(c rdma.ClientID) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[c] {
		return false, nil
	}
	l.of[c] = true
	return true, nil
}

func (l *ownLives) drop(c rdma.ClientID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, c)
	return nil
}

func (l *ownLives) held(c rdma.ClientID) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[c], nil
}

func (l *ownLives) close() error { return nil }

// anonymous memory is backed when it is touched. A machine without memory ends the process then:
// there is no error to return.
type anonymous struct{}

func (anonymous) commit(_, _ uint64) error { return nil }
func (anonymous) whole(uint64) bool        { return true }
func (anonymous) removed() bool            { return false }
