package stores

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Server is what runs beside a memory node.
type Server interface {
	// Run serves until Stop, or until it fails. The error wraps rdma.ErrClosed when the endpoint
	// was closed. ep is as Kind.Serve describes it, and no other task uses it. When Run returns,
	// all tasks that it started have ended.
	Run(ep rdma.Endpoint) error
	// Stop lets Run return soon. It may be called by another goroutine, before Run, and more than
	// once.
	Stop()
	// Ready reports whether the server serves all that the pool's configuration has it serve. It
	// may be called by another goroutine.
	Ready() bool
	// Counts appends the server's counters to to: always the same counters, in the same order. It
	// may be called by another goroutine until Run returns.
	Counts(to []telemetry.Counter) []telemetry.Counter
}

// ServerName begins the names of the clients that are servers, or tasks of servers. Nothing keeps
// another client from using it.
const ServerName = "server "

// OfServer reports whether a client of that name is a server, or a task of one.
func OfServer(name string) bool { return strings.HasPrefix(name, ServerName) }

// Servers are the servers of a pool with memory nodes that are parts of this process. Its methods
// are safe for concurrent use. A nil *Servers has none.
type Servers struct {
	// mu protects the fields down to err.
	mu sync.Mutex
	// running are the servers that have been opened.
	running []Server
	// left are the nodes with servers that have not ended, whether or not they have opened.
	left []int
	// stopped: a server that opens from now on is stopped at once.
	stopped bool
	// err joins the errors with which servers ended.
	err error
	// opening counts the servers that have neither opened nor failed to.
	opening sync.WaitGroup
}

// Start starts the servers of a new pool with memory nodes that are parts of this process
// (rdma.Hoster). No client may use the pool before. Servers end by Stop, and with the fabric.
func (k *Kind) Start(f rdma.Fabric) (*Servers, error) {
	if k.Serve == nil {
		return nil, nil
	}
	h, ok := f.(rdma.Hoster)
	if !ok {
		return nil, fmt.Errorf("run servers beside the nodes of the pool: %w", rdma.ErrNotSupported)
	}
	s := &Servers{}
	for n := range f.Nodes() {
		s.left = append(s.left, n)
	}
	for n := range f.Nodes() {
		s.opening.Add(1)
		opened := sync.OnceFunc(s.opening.Done) // in virtual time it begins anew when its node comes back
		err := h.Host(n, fmt.Sprint(ServerName, n), func(ep rdma.Endpoint) { s.ended(n, s.run(ep, k, f, n, opened)) })
		if err != nil {
			opened()
			s.Stop()
			return nil, fmt.Errorf("start the server beside node %d: %w", n, err)
		}
	}
	return s, nil
}

// servable returns why nothing can run beside the memory nodes of a pool, if the store has servers.
func (k *Kind) servable(f rdma.Fabric) error {
	if k.Serve == nil {
		return nil
	}
	ep, err := f.Open("format")
	if err != nil {
		return err
	}
	if _, err = rdma.Rings(ep); errors.Is(err, rdma.ErrNotSupported) {
		err = fmt.Errorf("%w: a %s pool: servers run beside its memory nodes, and shared memory has no processor "+
			"beside it (hint: use mem: within one program, or a pool on node processes: 'farkv up --store %s "+
			"--fabric tcp')", ErrParams, k.Name, k.Name)
	}
	return errors.Join(err, ep.Close())
}

func (s *Servers) run(ep rdma.Endpoint, k *Kind, f rdma.Fabric, node int, opened func()) error {
	server, err := k.Serve(ep, f, node)
	opened()
	if err != nil {
		return fmt.Errorf("open server %d: %w", node, err)
	}
	s.mu.Lock()
	s.running = append(s.running, server)
	stopped := s.stopped
	s.mu.Unlock()
	if stopped {
		server.Stop()
	}
	return server.Run(ep)
}

// ended records that the server of a node has ended. err is dropped when the fabric was closed, or
// the node died.
func (s *Servers) ended(node int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = slices.DeleteFunc(s.left, func(n int) bool { return n == node })
	if err != nil && !errors.Is(err, rdma.ErrClosed) && !errors.Is(err, rdma.ErrNodeDown) {
		s.err = errors.Join(s.err, err)
	}
}

// Await waits until each server has opened, or failed to. It blocks the goroutine, and so must not
// be called in virtual time.
func (s *Servers) Await() {
	if s != nil {
		s.opening.Wait()
	}
}

// Stop lets all servers end soon.
func (s *Servers) Stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, server := range s.running {
		server.Stop()
	}
}

// Running returns the nodes with servers that have not ended. In virtual time a server that crashed
// counts as running: its task is not resumed, and so never ends.
func (s *Servers) Running() []int {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.left)
}

// Err returns the errors with which servers ended.
func (s *Servers) Err() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
