package original

import (
	"bytes"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
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

// session is how a worker reaches the pool, and the time that its operation has.
type session struct {
	*layout
	ep rdma.Endpoint
	id rdma.ClientID
	// view follows the pool's membership.
	view    *kit.Member
	timeout time.Duration
	// pace is copied by each wait.
	pace kit.Retry
	// The operation that runs waits for others until decideBy, and for verbs until
	// the time until.
	decideBy, until time.Duration
	// sent: the last batch was posted. If the wait for it failed, its verbs may
	// still take effect.
	sent  bool
	trip  time.Duration // that the last batch took
	stats Stats
}

// newSession returns that of a worker which has joined a view. Its time has not
// begun: see span.
func newSession(l *layout, ep rdma.Endpoint, v *kit.Member, timeout time.Duration) *session {
	s := &session{layout: l, ep: ep, id: ep.Client(), view: v, timeout: timeout}
	s.pace = kit.Retry{Env: ep, Pause: forLocks, Over: s.over}
	return s
}

// span begins the time of an operation, or of a part of a scan or a recovery.
func (s *session) span() {
	now := s.ep.Now()
	s.decideBy, s.until = now+s.timeout/timeShares, now+s.timeout
}

// over reports whether the time to wait for others is over.
func (s *session) over() bool { return s.ep.Now() >= s.decideBy }

// do posts a batch as a step of the protocol, and waits for all of it as long as
// there is time. With no time left it posts nothing. Afterwards s.sent reports
// whether the batch was posted. An error of one verb is the batch's error. The
// batch stays the caller's.
func (s *session) do(step rdma.Step, b *rdma.Batch) error {
	s.sent = false
	began := s.ep.Now()
	left := s.until - began
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
	s.trip = s.ep.Now() - began
	return b.Err()
}

// landed waits, for a moment also when no time is left, until nothing of a batch is in flight that
// a wait gave up. It releases the batch then, and sets *b to nil; nil: there is none.
func (s *session) landed(b **rdma.Batch) error {
	if *b == nil {
		return nil
	}
	if err := s.ep.Wait(*b, rdma.All, max(s.until-s.ep.Now(), 1)); err != nil && !(*b).Finished() {
		return err
	}
	(*b).Release()
	*b = nil
	return nil
}

// read reads n bytes. They are valid until the caller releases the batch. It
// reads again while that is useful: a READ that lands late does no harm.
func (s *session) read(step rdma.Step, at rdma.Addr, n int) (*rdma.Batch, []byte, error) {
	for {
		b := s.ep.Batch()
		// The buffer is the batch's. Each try has another one, since a READ
		// that was given up may land in the one before.
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
func (s *session) rejoin(err error) bool {
	return !s.over() && s.view.Rejoin(err, s.until-s.ep.Now(), s.timeout)
}

// runWords is how many words a survey reads at a time.
const runWords = 4096

// words calls f with the words of a table of a memory node that are not 0. f may
// use verbs: each call has the time of an operation.
func (s *session) words(n int, at uint64, count int, f func(i int, w uint64) error) error {
	for first := 0; first < count; first += runWords {
		b, p, err := s.read(stepSurvey, rdma.At(n, at+uint64(first)*8), min(runWords, count-first)*8)
		if err != nil {
			return err
		}
		// f uses verbs, and the buffer is the batch's.
		p = bytes.Clone(p)
		b.Release()
		for i := 0; i < len(p)/8; i++ {
			if w := le.Uint64(p[8*i:]); w != 0 {
				s.span()
				if err := f(first+i, w); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
