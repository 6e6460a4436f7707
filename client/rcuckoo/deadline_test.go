package rcuckoo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// shifting is an endpoint for which the pool's view changes with each verb, from a moment on.
type shifting struct {
	rdma.Endpoint
	left int // verbs that are cut off
}

const shiftEach = 100 * time.Microsecond

func (s *shifting) Post(b *rdma.Batch) error {
	if s.left > 0 {
		s.left--
		s.Sleep(shiftEach)
		return rdma.ErrStale
	}
	return s.Endpoint.Post(b)
}

// An operation ends at its timeout, however often the view changes under it.
func TestViewsThatNeverRest(t *testing.T) {
	const timeout, cutOffs = 20 * time.Millisecond, 5000
	f := memPool(t, 1, inlinePool(1))
	must(t, storeOn(t, f, session.Options{}).Insert([]byte("key"), []byte("value")))
	ep, err := f.Open("shifting")
	must(t, err)
	e := &shifting{Endpoint: ep}
	s, err := Open(e, session.Options{Timeout: timeout})
	must(t, err)
	for name, op := range map[string]func() error{
		"get":    func() error { _, err := s.Get([]byte("key")); return err },
		"update": func() error { return s.Update([]byte("key"), []byte("other")) },
		"insert": func() error { return s.Insert([]byte("new"), []byte("value")) },
		"delete": func() error { return s.Delete([]byte("key")) },
	} {
		e.left = cutOffs
		err := op()
		if !errors.Is(err, rdma.ErrTimeout) || errors.Is(err, client.ErrUncertain) {
			t.Errorf("%s: %v", name, err)
		}
		if met, most := cutOffs-e.left, int(timeout/shiftEach)+5; met > most {
			t.Errorf("%s met %d views, want %d in its time", name, met, most)
		}
		e.left = 0
		if v, err := s.Get([]byte("key")); err != nil || string(v) != "value" {
			t.Errorf("behind %s: %q, %v", name, v, err)
		}
	}
	must(t, errors.Join(s.Close(), ep.Close()))
	judge(t, f)
}

// The search for an extent takes no longer than what is left of the operation's time.
func TestNoTimeForAnExtent(t *testing.T) {
	f := memPool(t, 1, extentPool(1))
	s := storeOn(t, f, session.Options{})
	for n, until := range []time.Duration{s.session.EP.Now() - 1, s.session.EP.Now() + time.Minute} {
		_, err := s.extents.Take(0, 0, 100, until)
		if late := n == 0; late != errors.Is(err, rdma.ErrTimeout) {
			t.Errorf("take %d: %v", n, err)
		}
	}
}

// slowGrower takes long for each call to a node.
type slowGrower struct {
	rdma.Endpoint
	each  time.Duration
	calls int
}

func (g *slowGrower) Call(n int, r *rdma.Request, within time.Duration) error {
	if r.Proc == node.ProcGrow {
		g.calls++
		g.Sleep(g.each)
	}
	return g.Endpoint.Call(n, r, within)
}

// An INSERT that begins a level does not wait beyond its timeout until the whole level has
// memory. The next INSERT goes on where it stopped.
func TestGrowInParts(t *testing.T) {
	p := growingPool(1)
	p.Rows, p.Entries, p.RowsPerLock, p.Levels = 1000, 64, 64, 3
	f := memPool(t, 1, p)
	ep, err := f.Open("grower")
	must(t, err)
	g := &slowGrower{Endpoint: ep, each: 20 * time.Millisecond}
	s, err := Open(g, session.Options{Timeout: 50 * time.Millisecond})
	must(t, err)
	defer func() { must(t, errors.Join(s.Close(), ep.Close())) }()
	const level = 3
	if segment := uint64(s.session.Table.Rows) * uint64(s.session.Table.RowBytes); segment < backAtOnce {
		t.Fatalf("a segment of %d bytes: want as many as one call gives", segment)
	}
	segments := 1<<level - 1
	for tries := 1; ; tries++ {
		s.op.Begin()
		before := g.calls
		err := s.backLevel(s.op, 0, level)
		if n := g.calls - before; n > 4 {
			t.Fatalf("%d calls of %v in a timeout of %v", n, g.each, s.session.Opt.Timeout)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, rdma.ErrTimeout) || tries > segments {
			t.Fatalf("try %d: %v", tries, err)
		}
	}
	if have, err := s.op.ReadWord(s.session.Table.GrowthAt(0).Add(table.GrowthSegments)); err != nil ||
		have != uint64(segments) {
		t.Error(fmt.Errorf("%d segments have memory, want %d: %w", have, segments, err))
	}
}
