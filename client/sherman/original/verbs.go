package original

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

var (
	// errTime ends what has used up its time.
	errTime = fmt.Errorf("operation %w", rdma.ErrTimeout)
	// errStolen says that a lock which the worker held is not its own any more.
	errStolen = fmt.Errorf("a lock that was held is not: %w", client.ErrDamaged)
)

// timeShares: an operation waits for others, and decides, within one part of its
// time, of so many. The rest is for finishing what was decided.
const timeShares = 2

// span begins the time of an operation, or of a part of a scan or a recovery.
func (s *Store) span() {
	now := s.ep.Now()
	s.decideBy, s.until = now+s.timeout/timeShares, now+s.timeout
}

// over reports whether the time to wait for others is over.
func (s *Store) over() bool { return s.ep.Now() >= s.decideBy }

// do posts a batch as a step of the protocol, and waits for all of it as long as
// there is time. With no time left it posts nothing. Afterwards s.sent reports
// whether the batch was posted. An error of one verb is the batch's error. The
// batch stays the caller's.
func (s *Store) do(step rdma.Step, b *rdma.Batch) error {
	s.sent = false
	left := s.until - s.ep.Now()
	// Nothing was posted, so nothing has changed.
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

// read reads n bytes. They are valid until the caller releases the batch. It
// reads again while that is useful: a READ that lands late does no harm.
func (s *Store) read(step rdma.Step, at rdma.Addr, n int) (*rdma.Batch, []byte, error) {
	for {
		b := s.ep.Batch()
		op := b.Read(at, n)
		err := s.do(step, b)
		if err == nil {
			return b, op.Buf, nil
		}
		// A READ that failed has no data. The batch is released with its
		// straggler.
		b.Release()
		if !s.rejoin(err) {
			return nil, nil, err
		}
	}
}

// rejoin reports whether it is useful to go on after an error: see
// kit.Member.Rejoin.
func (s *Store) rejoin(err error) bool {
	return !s.over() && s.view.Rejoin(err, s.until-s.ep.Now(), s.timeout)
}
