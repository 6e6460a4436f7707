package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/monitor"
	"github.com/farkv/farkv/tui"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/drivers"
)

// lookEvery is the time between two samples. A run publishes what it did once a second.
const lookEvery = time.Second

// canMonitor refuses a monitor that nothing could be drawn in, before anything is opened.
func (f *flags) canMonitor(cmd *cobra.Command, database string) error {
	if !f.monitor {
		return nil
	}
	if _, err := stores.Lookup(database); err != nil {
		return workloads.Usagef("--monitor: %s has no pool to show", database)
	}
	if in, out := terminals(cmd); in == nil || out == nil || tui.Dumb(os.Getenv) {
		return workloads.Usagef("--monitor needs a terminal that can place a cursor " +
			"(hint: 'farkv monitor' shows a pool on another one)")
	}
	return nil
}

// terminals returns the terminals that a command reads and writes; nil: that is none.
func terminals(cmd *cobra.Command) (in, out *os.File) {
	on := func(stream any) *os.File {
		if f, ok := stream.(*os.File); ok && term.IsTerminal(f.Fd()) {
			return f
		}
		return nil
	}
	if w, ok := cmd.OutOrStdout().(*watched); ok {
		out = on(w.Writer)
	}
	return on(cmd.InOrStdin()), out
}

// shown is the monitor of a run. Nil is none.
type shown struct {
	leave context.CancelFunc
	left  chan struct{} // closed when the terminal is as it was, and nothing looks at the pool any more
}

// show draws the pages of the pool that a run is about to use, which is open at an address. The
// pages are left when the run ends (close), when it is interrupted, or by a key.
func (f *flags) show(cmd *cobra.Command, out *output, db drivers.Database, addr string) (*shown, error) {
	fabric, _, ok := drivers.Inside(db)
	if !f.monitor || !ok {
		return nil, nil
	}
	pool, err := stores.Of(addr, fabric)
	if err != nil {
		return nil, fmt.Errorf("--monitor: %w", err)
	}
	o := tui.Options{Pools: []tui.Pool{{Name: pool.Address}}}
	o.In, o.Out = terminals(cmd)
	o.Open = func(context.Context, string) (*tui.Session, error) {
		return &tui.Session{
			Source: monitor.WatchOpen(pool, lookEvery),
			WhyNot: "A run's own monitor breaks nothing: 'farkv monitor' and 'farkv crash' do.",
		}, nil
	}
	ctx, leave := context.WithCancel(cmd.Context())
	s := &shown{leave, make(chan struct{})}
	out.hidden.Store(true)
	go func() {
		defer close(s.left)
		err := tui.Run(ctx, o)
		out.hidden.Store(false)
		if ctx.Err() == nil {
			goOn(cmd, out, err)
		}
	}()
	return s, nil
}

// goOn tells the user how a run continues when its monitor ended before it.
func goOn(cmd *cobra.Command, out *output, err error) {
	var p *tui.Panic
	switch {
	case err == nil:
		fmt.Fprintln(out.info, "The monitor is closed; the run goes on.")
		return
	case errors.Is(err, tui.ErrInterrupted): // by Ctrl-C, which is a key there: what it is elsewhere
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT) // of a process to itself, which is always permitted
		return
	case errors.As(err, &p):
		fmt.Fprintf(cmd.ErrOrStderr(), "%s\n", p.Stack) // a fault of the program's, to be reported
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "go-ycsb: the monitor ended, and the run goes on: %v\n", err)
}

// close leaves the pages and waits until the terminal is as it was.
func (s *shown) close() {
	if s != nil {
		s.leave()
		<-s.left
	}
}
