package tui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/pages"
)

// A Panic is one that was caught, so that the terminal could be restored. Its message is one line.
type Panic struct {
	Value any
	Stack []byte
}

func (p *Panic) Error() string { return fmt.Sprintf("internal error: %v", p.Value) }

// caught turns a panic into an error.
func caught(err *error) {
	if v := recover(); v != nil {
		*err = &Panic{v, debug.Stack()}
	}
}

// sampleMsg is what a source told. Those of a source that is not the one shown any more have
// another number.
type sampleMsg struct {
	number int
	sample *telemetry.Sample
	err    error
	// restart empties the history: a recording went to another time.
	restart bool
}

// openedMsg is what came of opening a pool.
type openedMsg struct {
	number  int
	session *Session
	err     error
	// Of a recording: that it is one, and its span.
	replay   bool
	from, to time.Time
}

// A pump runs what waits: the source, and breaks. It tells the program through one channel, and is
// joined by close.
type pump struct {
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	msgs   chan tea.Msg
	stop   context.CancelFunc // of the source that runs
	orders chan func(Replay) (restart bool, err error)
	number int
}

func newPump(ctx context.Context) *pump {
	p := &pump{msgs: make(chan tea.Msg), stop: func() {}}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

// close ends all tasks and waits for them.
func (p *pump) close() {
	p.cancel()
	p.tasks.Wait()
}

// wait is the command that returns the next message.
func (p *pump) wait() tea.Msg {
	select {
	case m := <-p.msgs:
		return m
	case <-p.ctx.Done():
		return nil
	}
}

// after returns a command that returns m after d, or nothing when the pump is closed.
func (p *pump) after(d time.Duration, m tea.Msg) tea.Cmd {
	return func() tea.Msg {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return m
		case <-p.ctx.Done():
			return nil
		}
	}
}

// tell hands a message to the program; it reports whether the task goes on.
func (p *pump) tell(ctx context.Context, m tea.Msg) bool {
	select {
	case p.msgs <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// run ends the source that runs, opens another one and tells its samples.
func (p *pump) run(open func(context.Context) (*Session, error)) {
	p.stop()
	ctx, cancel := context.WithCancel(p.ctx)
	orders := make(chan func(Replay) (bool, error), 16)
	p.stop, p.orders = cancel, orders
	p.number++
	number := p.number
	p.tasks.Go(func() {
		defer cancel()
		s, err := opened(ctx, open)
		m := openedMsg{number: number, session: s, err: err}
		if err == nil {
			if r, ok := s.Source.(Replay); ok {
				m.replay = true
				m.from, m.to = r.Span()
			}
		}
		if !p.tell(ctx, m) || err != nil {
			if s != nil {
				_ = s.Source.Close() // nothing was read yet
			}
			return
		}
		p.read(ctx, number, s.Source, orders)
	})
}

func opened(ctx context.Context, open func(context.Context) (*Session, error)) (s *Session, err error) {
	defer caught(&err)
	return open(ctx)
}

// read tells the samples of a source until ctx ends. Orders for a replay end a call of Next that
// waits.
func (p *pump) read(ctx context.Context, number int, s Source, orders chan func(Replay) (bool, error)) {
	defer func() {
		var err error
		defer caught(&err)
		_ = s.Close() // of what is only read; its samples are shown
	}()
	replay, _ := s.(Replay)
	ended := false
	for ctx.Err() == nil {
		m := sampleMsg{number: number}
		if ended {
			select {
			case order := <-orders:
				m.restart, m.err = order(replay)
				ended = !m.restart
			case <-ctx.Done():
			}
		} else {
			m.sample, m.restart, m.err = p.next(ctx, s, replay, orders)
			ended = errors.Is(m.err, io.EOF)
		}
		if m.sample == nil && m.err == nil && !m.restart {
			continue
		}
		if !p.tell(ctx, m) || errors.Is(m.err, ErrGone) || errors.As(m.err, new(*Panic)) {
			return
		}
		if m.err != nil && !ended {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

// next returns the next sample, or what an order came to that arrived before it.
func (p *pump) next(ctx context.Context, s Source, replay Replay, orders chan func(Replay) (bool, error)) (
	sample *telemetry.Sample, restart bool, err error) {
	defer caught(&err)
	if replay == nil {
		sample, err = s.Next(ctx)
		return sample, false, err
	}
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	var order func(Replay) (bool, error)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case order = <-orders:
			cancel()
		case <-inner.Done():
		}
	}()
	sample, err = s.Next(inner)
	cancel()
	<-done
	if order == nil {
		return sample, false, err
	}
	restart, failed := order(replay)
	if restart || failed != nil {
		return nil, restart, failed
	}
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return sample, false, err
}

// order asks the running replay for something. One that does not keep up loses orders: they come
// from keys.
func (p *pump) order(f func(Replay) (restart bool, err error)) {
	select {
	case p.orders <- f:
	default:
	}
}

// start runs a break.
func (p *pump) start(b pages.Breaker, n int, what pages.Break) {
	p.tasks.Go(func() {
		var err error
		func() {
			defer caught(&err)
			err = b.Break(p.ctx, what, func(o pages.Outcome) { p.tell(p.ctx, pages.BreakMsg{N: n, Outcome: o}) })
		}()
		p.tell(p.ctx, pages.BreakMsg{N: n, Err: err, Ended: true})
	})
}
