package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/chaos"
	"github.com/farkv/farkv/ops/monitor"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/tui"
)

// monitorFlags are the flags of monitor.
type monitorFlags struct {
	demo, once, readOnly, light, dark bool
	store, record, replay             string
	every                             time.Duration
}

func (c *cli) monitor() *cobra.Command {
	m := new(monitorFlags)
	cmd := &cobra.Command{
		Use:   "monitor [POOL]",
		Short: "Watch a pool live, break it, and see it heal",
		Long: longText(`
Monitor shows a pool on this terminal: throughput, latencies, nodes, clients, the store's own counters, events. It is
no client of the pool. A read token is enough for all but breaking things. While the pool cannot be opened it shows
what it saw last, and how old that is. '?' lists the keys.

  --demo            a private pool on memory nodes of this machine, with a load; something breaks every 20 s; it is
                    removed at the end
  --once            one frame as text, or with -o json one sample
  --record FILE     keep what is shown in a file, also without a terminal
  --replay FILE     show such a file, or one of 'farkv sim run --record': it can be paused, sought and sped up`),
		Example: longText(`
  farkv monitor --demo
  farkv monitor mine --record run.fkr
  farkv monitor --replay run.fkr
  farkv monitor mine --once -o json`),
		Args: func(cmd *cobra.Command, args []string) error {
			if (m.demo || m.replay != "") && len(args) > 0 {
				return errors.New("monitor: --demo and --replay take no pool")
			}
			return operands("")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return c.runMonitor(cmd, m, args) },
	}
	f := cmd.Flags()
	f.BoolVar(&m.demo, "demo", false, "make a private pool with a load, and break something every 20 s")
	f.StringVar(&m.store, "store", "fusee", "store of the demo's pool")
	f.BoolVar(&m.once, "once", false, "one frame, or with -o json one sample")
	f.StringVar(&m.record, "record", "", "`file` for a recording, such as run.fkr")
	f.StringVar(&m.replay, "replay", "", "`file` of a recording to show")
	f.BoolVar(&m.readOnly, "readonly", false, "no key can break anything")
	f.DurationVar(&m.every, "interval", time.Second, "between two samples")
	f.BoolVar(&m.light, "light", false, "colors for a light background (default what the terminal says)")
	f.BoolVar(&m.dark, "dark", false, "colors for a dark background")
	return cmd
}

// runMonitor chooses between the ways to show a pool.
func (c *cli) runMonitor(cmd *cobra.Command, m *monitorFlags, args []string) error {
	switch {
	case m.every < 100*time.Millisecond || m.every > time.Minute:
		return fmt.Errorf("--interval %v: want 100ms to 1m", m.every)
	case m.demo && (m.replay != "" || m.once):
		return errors.New("monitor: --demo goes with neither --replay nor --once")
	case m.replay != "" && m.record != "":
		return errors.New("monitor: --replay and --record contradict each other")
	case cmd.Flags().Changed("store") && !m.demo:
		return errors.New("monitor: --store is for --demo")
	case c.output != "text" && !m.once:
		return fmt.Errorf("monitor: -o %s is for --once", c.output)
	}
	if m.once {
		return c.monitorOnce(cmd, m, args)
	}
	terminal := term.IsTerminal(os.Stdin.Fd()) && term.IsTerminal(os.Stdout.Fd()) && !tui.Dumb(os.Getenv)
	switch {
	case !terminal && m.record != "" && !m.demo:
		return c.recordOnly(cmd, m, args)
	case !terminal:
		return errors.New("monitor: needs a terminal that can place a cursor (hint: --once prints one frame, " +
			"--record FILE needs none)")
	}
	o := tui.Options{ReadOnly: m.readOnly, Light: m.light, Dark: m.dark, Open: m.open, SVG: monitor.ExportSVG}
	var err error
	switch name := append(args, os.Getenv("FARKV_POOL"))[0]; {
	case m.demo:
		return c.showDemo(cmd, m, o)
	case m.replay != "":
		err = m.showReplay(&o)
	case name != "":
		err = m.show(&o, name)
	default:
		err = showAll(&o)
	}
	if err != nil {
		return failure{err}
	}
	return monitorEnd(cmd, tui.Run(cmd.Context(), o))
}

// showReplay shows a recording.
func (m *monitorFlags) showReplay(o *tui.Options) error {
	r, err := virtual.OpenReplay(m.replay)
	if err != nil {
		return err
	}
	o.Pools = []tui.Pool{{Name: m.replay}}
	o.Open = func(context.Context, string) (*tui.Session, error) {
		return &tui.Session{Source: r, WhyNot: "A recording can break nothing."}, nil
	}
	return nil
}

// show shows one pool. That there is none is an error before the terminal is taken.
func (m *monitorFlags) show(o *tui.Options, name string) error {
	s, err := m.open(context.Background(), name)
	if err != nil {
		return err
	}
	o.Pools = []tui.Pool{{Name: name}}
	o.Open = func(context.Context, string) (*tui.Session, error) { return s, nil }
	return nil
}

// showDemo makes a pool with a load, breaks something of it again and again, and shows it.
func (c *cli) showDemo(cmd *cobra.Command, m *monitorFlags, o tui.Options) error {
	program, err := os.Executable()
	if err != nil {
		return failure{fmt.Errorf("monitor --demo: which program starts the nodes: %w", err)}
	}
	// A terminal that goes away ends a demo, too, and the pool with it: at any time, not only while
	// frames are drawn.
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
	defer stop()
	if !c.quiet {
		fmt.Fprintf(cmd.ErrOrStderr(), "making a %s pool on memory nodes of this machine, and loading it\n", m.store)
	}
	d, err := chaos.StartDemo(ctx, program, m.store)
	if why := context.Cause(ctx); err != nil && why != nil {
		return fmt.Errorf("%w: %w", tui.ErrInterrupted, why)
	}
	if err != nil {
		return failure{err}
	}
	if err = m.show(&o, d.Name); err == nil {
		d.BreakThings()
		err = tui.Run(ctx, o)
	}
	if !c.quiet {
		fmt.Fprintln(cmd.ErrOrStderr(), "removing the pool")
	}
	return monitorEnd(cmd, errors.Join(err, d.Close()))
}

// showAll lets choose between the pools of this machine.
func showAll(o *tui.Options) error {
	all, err := ops.List()
	if err == nil {
		err = all.AddStarted()
	}
	if err != nil {
		return err
	}
	for _, p := range all.Pools {
		o.Pools = append(o.Pools, tui.Pool{Name: p.Pool, About: p.About()})
	}
	return nil
}

// open begins to watch a pool.
func (m *monitorFlags) open(_ context.Context, pool string) (*tui.Session, error) {
	w, err := monitor.NewWatch(pool, m.every, m.record)
	if err != nil {
		return nil, err
	}
	if m.readOnly {
		return &tui.Session{Source: w, WhyNot: "--readonly: no key can break anything."}, nil
	}
	b := chaos.NewPageBreaker(pool)
	return &tui.Session{Source: watched{w, b}, Breaker: b}, nil
}

// watched is a source with a pool that the user may break.
type watched struct {
	*monitor.Watch
	b *chaos.PageBreaker
}

func (w watched) Close() error {
	w.b.Close()
	return w.Watch.Close()
}

// monitorOnce prints one look.
func (c *cli) monitorOnce(cmd *cobra.Command, m *monitorFlags, args []string) error {
	var source tui.Source
	var err error
	if m.replay != "" {
		source, err = virtual.OpenReplayAtEnd(m.replay)
	} else {
		pool, _ := poolAnd(args, 0)
		source, err = monitor.NewWatch(pool, m.every, m.record)
	}
	if err != nil {
		return failure{err}
	}
	l, err := monitor.LookOnce(cmd.Context(), source, c.output == "text", tui.UTF8(os.Getenv))
	return answer(c, cmd, l, errors.Join(err, source.Close()))
}

// recordOnly records without showing anything, until it is interrupted.
func (c *cli) recordOnly(cmd *cobra.Command, m *monitorFlags, args []string) error {
	pool, _ := poolAnd(args, 0)
	w, err := monitor.NewWatch(pool, m.every, m.record)
	if err != nil {
		return failure{err}
	}
	if !c.quiet {
		fmt.Fprintf(cmd.ErrOrStderr(), "recording %s to %s until an interrupt\n", pool, m.record)
	}
	for err == nil {
		_, err = w.Next(cmd.Context())
	}
	if cmd.Context().Err() != nil {
		err = nil // it was asked to end
	}
	return told(errors.Join(err, w.Close()))
}

// monitorEnd makes an error of the program's one of the command's.
func monitorEnd(cmd *cobra.Command, err error) error {
	var p *tui.Panic
	switch {
	case err == nil:
		return nil
	case errors.Is(err, tui.ErrInterrupted):
		return err
	case errors.As(err, &p):
		fmt.Fprintf(cmd.ErrOrStderr(), "%s\n", p.Stack) // a fault of the program's, to be reported
	}
	return failure{err}
}
