// Go-ycsb loads and runs YCSB's core workload against farkv's stores, and against Redis for
// comparison. It has the command line, the properties and the result lines of
// github.com/pingcap/go-ycsb.
//
// Its exit status is 0 when all went well, 1 when operations failed or there was nothing to run on,
// 2 when it was not used as it should be, and 130 after an interrupt or 143 after a termination.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops/command"
)

// The exit statuses.
const (
	exitFailed      = 1
	exitMisuse      = 2
	exitInterrupted = 128 // and the signal's number
)

func main() { os.Exit(execute(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// failure is an error that is no misuse of the command line.
type failure struct {
	status int
	error
}

func (f *failure) Unwrap() error { return f.error }

// execute runs a command line and returns its exit status. What went wrong is one line on stderr.
func execute(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, caught, release := interruptible(stderr)
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &watched{Writer: stdout, lost: cancel}
	startNodes(ctx)
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if wrong := out.failure(); wrong != nil && caught.Load() == 0 {
		err = &failure{exitFailed, fmt.Errorf("standard output: %w", wrong)}
	}
	if err == nil {
		return 0
	}
	if text := strings.TrimSpace(err.Error()); text != "" {
		fmt.Fprintf(stderr, "go-ycsb: %s\n", strings.Join(strings.Fields(text), " "))
	}
	var f *failure
	switch {
	case errors.As(err, &f) && f.status == exitInterrupted:
		return exitInterrupted + int(caught.Load())
	case errors.As(err, &f):
		return f.status
	}
	return exitMisuse
}

// watched is standard output. When it has no reader any more, the run stops as if it were
// interrupted, so that its clients leave the pool in order.
type watched struct {
	io.Writer
	lost func()
	mu   sync.Mutex // guards err
	err  error      // the first
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		w.mu.Lock()
		if w.err == nil {
			w.err = err
		}
		w.mu.Unlock()
		w.lost()
	}
	return n, err
}

func (w *watched) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// echo is how long after the first signal others are taken for the same: a shell and timeout(1)
// send one to a process and to its group.
const echo = time.Second

// interruptible returns a context that the first signal ends, so that what was measured so far is
// still printed; a later one ends the process. The signal's number is in caught.
func interruptible(stderr io.Writer) (ctx context.Context, caught *atomic.Int64, release func()) {
	ctx, cancel := context.WithCancel(context.Background())
	caught = new(atomic.Int64)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	// A write to a pipe without a reader then fails. By default SIGPIPE would kill this process,
	// which has clients in a pool.
	signal.Ignore(syscall.SIGPIPE)
	done := make(chan struct{})
	go func() {
		var first time.Time
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				number, _ := s.(syscall.Signal)
				switch {
				case first.IsZero():
					first = time.Now()
					caught.Store(int64(number))
					fmt.Fprintf(stderr, "go-ycsb: %v: stopping; once more ends it at once\n", s)
					cancel()
				case time.Since(first) >= echo:
					os.Exit(exitInterrupted + int(number))
				}
			}
		}
	}()
	return ctx, caught, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

func newRoot() *cobra.Command {
	version := false
	root := &cobra.Command{
		Use:   "go-ycsb",
		Short: "YCSB for farkv's stores",
		Long: "Go-ycsb loads and runs YCSB's core workload against farkv's stores, and Redis for comparison.\n\n" +
			"Exit status: 0 all went well; 1 operations failed, or nothing was loaded; 2 wrong use;\n" +
			"130 interrupted, 143 terminated, with the results so far.",
		Example: "  go-ycsb load fusee -P workloads/ycsb/workloada -p recordcount=100000\n" +
			"  go-ycsb run fusee -P workloada -p recordcount=100000 -p operationcount=1000000 --threads 8\n" +
			"  go-ycsb run redis -P workloada -p redis.addr=127.0.0.1:6379 --target 5000 --results redis.json",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			if version {
				return showVersion(cmd, args)
			}
			return cmd.Help()
		},
	}
	root.Flags().BoolVar(&version, "version", false, "what 'go-ycsb version' shows")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(helpCommand(root))
	root.AddCommand(newClientCommand("load"), newClientCommand("run"), newShellCommand(), newVersionCommand(),
		newNodeCommand())
	root.AddCommand(helpTopics()...)
	completions(root)
	command.Wrapped(root)
	return root
}

func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unknown command %q: %s'go-ycsb help' lists the commands", args[0],
			command.Unknown(cmd, args[0]))
	}
	return nil
}
