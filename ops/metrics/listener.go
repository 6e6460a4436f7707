package metrics

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// mostScrapers bounds the connections to a metrics port: each takes one of the files that the
// process may have open, which it needs for what it is there for.
const mostScrapers = 16

// scrapers are the open connections to a metrics port, no more than mostScrapers. When there are as
// many, a new one takes the place of the one that has been without a request for the longest time.
type scrapers struct {
	net.Listener
	mu   sync.Mutex
	idle []net.Conn // without a request, the one that has been so for the longest time first
	busy map[net.Conn]struct{}
}

func newScrapers(l net.Listener) *scrapers {
	return &scrapers{Listener: l, busy: map[net.Conn]struct{}{}}
}

// Accept implements net.Listener.
func (s *scrapers) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if s.admit(c) {
			return c, nil
		}
		c.Close()
	}
}

// admit makes room for c, and reports whether there is any.
func (s *scrapers) admit(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle)+len(s.busy) >= mostScrapers {
		if len(s.idle) == 0 {
			return false
		}
		s.idle[0].Close()
		s.idle = s.idle[1:]
	}
	s.idle = append(s.idle, c)
	return true
}

// note is the server's ConnState.
func (s *scrapers) note(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.idle, c)
	_, busy := s.busy[c]
	if at < 0 && !busy {
		return // its place was taken
	}
	if at >= 0 && state != http.StateNew {
		s.idle = slices.Delete(s.idle, at, at+1)
	}
	switch state {
	case http.StateActive:
		s.busy[c] = struct{}{}
	case http.StateIdle:
		delete(s.busy, c)
		s.idle = append(s.idle, c)
	case http.StateClosed, http.StateHijacked:
		delete(s.busy, c)
	}
}
