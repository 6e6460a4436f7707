package sherman

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// deaf is an endpoint on which waits for some batches time out, though they complete.
type deaf struct {
	rdma.Endpoint
	misses func(b *rdma.Batch) bool
}

func (d *deaf) Wait(b *rdma.Batch, n int, within time.Duration) error {
	err := d.Endpoint.Wait(b, n, within)
	if err == nil && d.misses(b) {
		return rdma.ErrTimeout
	}
	return err
}

// TestUncertainMerge: a DELETE whose merge may have taken effect, or may yet, and has locked what
// other clients need, says so: its worker is not used on as if nothing had happened.
func TestUncertainMerge(t *testing.T) { both(t, uncertainMerge) }

func uncertainMerge(t *testing.T, format string) {
	const letters = "abcdefgh"
	f, _ := tinyOn(t, format, letters, 4)
	ep, err := f.Open("deaf")
	must(t, err)
	var s *Store
	missed := false
	s, err = Open(&deaf{ep, func(b *rdma.Batch) bool {
		decides := b.Step() == map[string]rdma.Step{RTX: "decide", DTX: "write and unlock"}[format]
		if s == nil || missed || s.stats.Merges == 0 || !decides {
			return false
		}
		missed = true
		return true
	}}, Options{})
	must(t, err)
	n := 0
	for err == nil && !missed && n < len(letters) {
		err = s.Delete([]byte{letters[n]})
		n++
	}
	if !missed {
		t.Fatal("no merge was to be decided")
	}
	wantError(t, err, client.ErrUncertain)
	for _, k := range letters[:n] {
		wantError(t, getOnly(s, string(k)), client.ErrNotFound)
	}
	must(t, s.Insert([]byte(letters[:1]), nil))
	must(t, s.Close())
	must(t, ep.Close())
	checked(t, f, len(letters)-n+1)
}

// cut is an endpoint that reaches no node while down is true: what it posts is lost, and is known
// to be only when down is false again.
type cut struct {
	rdma.Endpoint
	down bool
	// mends is the step of the batch with the wait for which it is up again.
	mends rdma.Step
	// loses reports whether the answer of a batch is lost, behind which it is down. It is called
	// before each batch is posted.
	loses func(b *rdma.Batch) bool
	late  map[*rdma.Batch]bool
}

func (c *cut) Post(b *rdma.Batch) error {
	if c.late[b] = true; c.loses(b) {
		c.down = true
		return c.Endpoint.Post(b)
	}
	if c.down {
		c.Endpoint.(interface{ Posted(*rdma.Batch) }).Posted(b)
		return nil
	}
	delete(c.late, b)
	return c.Endpoint.Post(b)
}

func (c *cut) Wait(b *rdma.Batch, n int, within time.Duration) error {
	switch c.down = c.down && b.Step() != c.mends; {
	case c.late[b] && c.down:
		return rdma.ErrTimeout
	case c.late[b]:
		delete(c.late, b)
		for i := range b.Len() {
			b.Op(i).Fail(rdma.ErrNodeDown)
		}
		b.CompleteAll()
	}
	return c.Endpoint.Wait(b, n, within)
}

// TestLockedMerge: a DELETE whose merge has failed, and cannot release what it has locked, says so:
// with DTX other clients would wait for that until the worker's next operation. If the release that
// failed can be done again, it is.
func TestLockedMerge(t *testing.T) {
	const letters = "abcdefgh"
	for _, stays := range []bool{true, false} {
		f, other := tinyOn(t, DTX, letters, 4)
		ep, err := f.Open("cut off")
		must(t, err)
		c := &cut{Endpoint: ep, late: map[*rdma.Batch]bool{}, loses: func(*rdma.Batch) bool { return false }}
		s, err := Open(c, Options{})
		must(t, err)
		locked, released := false, false
		if !stays {
			c.mends = "let go"
		}
		c.loses = func(b *rdma.Batch) bool {
			released = released || b.Step() == "let go" && locked
			if locked || s.stats.Merges == 0 || b.Step() != "lock" {
				return false
			}
			locked = true
			return true
		}
		n := 0
		for ; err == nil && !locked && n < len(letters); n++ {
			err = s.Delete([]byte{letters[n]})
		}
		if !locked || !released || stays != errors.Is(err, client.ErrUncertain) || !stays && err != nil {
			t.Errorf("down for long: %v, locked: %v, released: %v; the DELETE says: %v", stays, locked, released, err)
		}
		if c.down = false; stays {
			must(t, s.Insert([]byte(letters[:1]), nil))
			must(t, s.Delete([]byte(letters[:1])))
		}
		for _, k := range letters[n:] {
			must(t, other.Delete([]byte(string(k))))
		}
		must(t, errors.Join(s.Close(), ep.Close(), other.Close()))
		checked(t, f, 0)
	}
}

// busy is an endpoint whose clock goes on by a part of the pool's timeout with each wait, while at
// is set. It is called behind each read of a node.
type busy struct {
	rdma.Endpoint
	at    func()
	each  time.Duration
	waits int
}

func (b *busy) Now() time.Duration { return b.Endpoint.Now() + time.Duration(b.waits)*b.each }

func (b *busy) Wait(batch *rdma.Batch, n int, within time.Duration) error {
	err := b.Endpoint.Wait(batch, n, within)
	if b.at != nil {
		b.waits++
		if s := batch.Step(); s == "read data" || s == "read an object" {
			b.at()
		}
	}
	return err
}

// TestMergeGivesUp: a DELETE in leaves that others change all the time does not try for long to
// merge them: it has taken effect already.
func TestMergeGivesUp(t *testing.T) { both(t, mergeGivesUp) }

func mergeGivesUp(t *testing.T, format string) {
	const letters = "abcdefgh"
	f, other := tinyOn(t, format, letters, 4)
	ep, err := f.Open("busy")
	must(t, err)
	b := &busy{Endpoint: ep}
	s, err := Open(b, Options{})
	must(t, err)
	b.each = s.Timeout / 1000
	n := 0
	b.at = func() {
		if s.mergeUntil == 0 {
			b.waits = 0
			return
		}
		for _, k := range letters[n+1:] {
			must(t, other.Update([]byte(string(k)), []byte("else")))
		}
	}
	for ; s.stats.Kept == 0 && n < len(letters)-1; n++ {
		must(t, s.Delete([]byte{letters[n]}))
	}
	if least := 1000 / mergeShare; s.stats.Kept != 1 || b.waits < least || b.waits > 2*least {
		t.Errorf("%d merges were given up in %d waits, want one in %d to %d", s.stats.Kept, b.waits, least, 2*least)
	}
	b.at, s.stats.Merges = nil, 0
	for ; n < len(letters); n++ {
		must(t, s.Delete([]byte{letters[n]}))
	}
	if s.stats.Merges == 0 {
		t.Error("nothing was merged when the others had ended")
	}
	must(t, s.Close())
	must(t, ep.Close())
	checked(t, f, 0)
}
