package original

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

var (
	errTime   = fmt.Errorf("operation %w", rdma.ErrTimeout)
	errStolen = fmt.Errorf("a lock that was held is not: %w", client.ErrDamaged)
)

// timeShares: an operation waits for others, and decides, within a part of its time. What is left is for bringing what
// was decided to its end.
const timeShares = 2

// span begins the time of an operation, or of a part of a scan.
func (s *Store) span() {
	now := s.ep.Now()
	s.decideBy, s.until = now+s.timeout/timeShares, now+s.timeout
}

// over reports whether the time to wait for others is over.
func (s *Store) over() bool { return s.ep.Now() >= s.decideBy }

// do posts a batch as a step of the protocol and waits for all of it, as long as there is time; with none left it posts
// nothing. s.sent reports whether it did.
func (s *Store) do(step rdma.Step, b *rdma.Batch) error {
	s.sent = false
	left := s.until - s.ep.Now()
	if left <= 0 {
		return errTime
	}
	if err := s.ep.Post(b.As(step)); err != nil {
		return err
	}
	s.sent = true
	if err := s.ep.Wait(b, rdma.All, left); err != nil {
		return err
	}
	return b.Err()
}

// read reads n bytes. They are there until the batch is released.
func (s *Store) read(step rdma.Step, at rdma.Addr, n int) (*rdma.Batch, []byte, error) {
	for {
		b := s.ep.Batch()
		op := b.Read(at, n)
		err := s.do(step, b)
		if err == nil {
			return b, op.Buf, nil
		}
		b.Release()
		if !s.rejoin(err) {
			return nil, nil, err
		}
	}
}

// An operation waits for a node that does not answer for a part of its time: it may be out of reach for a moment.
const (
	reachShare = 4
	reachPause = 500 * time.Microsecond
)

// rejoin reports whether it makes sense to go on behind an error: verbs were fenced off, and the worker has joined the
// pool's view again; or a node does not answer, which is waited for.
func (s *Store) rejoin(err error) bool {
	switch {
	case s.over():
		return false
	case errors.Is(err, rdma.ErrStale):
		return s.view.Join() == nil
	case !errors.Is(err, rdma.ErrNodeDown) || s.ep.Now() > s.until-s.timeout+s.timeout/reachShare:
		return false
	}
	if err := s.view.Join(); err != nil && !errors.Is(err, rdma.ErrNodeDown) && !errors.Is(err, rdma.ErrUnreachable) {
		return false
	}
	s.ep.Sleep(reachPause)
	return true
}
