package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

// run executes a command line in this process.
func run(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = execute(ctx, args, strings.NewReader(""), &out, &errs)
	return status, out.String(), errs.String()
}

// broken is a standard output that takes nothing.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// An answer that could not be written is a failure.
func TestBrokenOutput(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	for _, args := range [][]string{
		{"list"}, {"list", "-o", "json"}, {"help"}, {"up", "--help"},
		{"bench", "--records", "1000", "--operations", "10", "--peers", "", "--stores", "fusee"},
	} {
		var errs bytes.Buffer
		status := execute(context.Background(), args, strings.NewReader(""), broken{}, &errs)
		says := "farkv: write the answer: no space left on device\n"
		if slices.Contains(args, "json") {
			says = `{"version":1,"error":"write the answer: no space left on device","status":1}` + "\n"
		}
		if status != 1 || !strings.HasSuffix(errs.String(), says) {
			t.Errorf("%v: exit status %d, %q", args, status, errs.String())
		}
	}
}

func TestInterruptedBench(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	status, stdout, stderr := run(ctx, "bench", "--records", "1000", "--operations", "1000", "--peers", "")
	if status != 130 || stdout != "" || !strings.HasSuffix(stderr, "farkv: interrupted\n") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
}

func TestBenchLeaksNothing(t *testing.T) {
	defer goleak.VerifyNone(t)
	status, stdout, stderr := run(context.Background(), "bench", "--records", "5000", "--operations", "1000",
		"--threads", "2", "--stores", "fusee", "--peers", "")
	if status != 0 || !strings.Contains(stdout, "\nfusee ") || !strings.Contains(stdout, "\none worker ") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
}

// Every command explains itself, with examples.
func TestHelp(t *testing.T) {
	var walk func(above *cobra.Command)
	walk = func(above *cobra.Command) {
		for _, cmd := range above.Commands() {
			if cmd.Name() == "help" || cmd.Hidden || !cmd.Runnable() {
				continue
			}
			path := strings.Fields(cmd.CommandPath())
			status, stdout, stderr := run(context.Background(), append(path[1:], "--help")...)
			if status != 0 || stderr != "" || !strings.Contains(stdout, "Examples:\n  "+cmd.CommandPath()) {
				t.Errorf("%s: %d, %q, %q", path, status, stdout, stderr)
			}
			for _, line := range strings.Split(stdout, "\n") {
				if len(line) > 120 || strings.HasSuffix(line, " ") {
					t.Errorf("%s: a line of %d bytes: %q", path, len(line), line)
				}
			}
			walk(cmd)
		}
	}
	walk(newRoot())
}

// Topics are no commands, fit a terminal, and name commands and flags that there are.
func TestTopics(t *testing.T) {
	all := topics()
	if len(all) != 3 {
		t.Errorf("%d topics", len(all))
	}
	for _, topic := range all {
		status, stdout, stderr := run(context.Background(), "help", topic.Name())
		if status != 0 || stderr != "" || !strings.Contains(stdout, "SEE ALSO") {
			t.Errorf("%s: %d, %q, %q", topic.Name(), status, stdout, stderr)
		}
		for line := range strings.Lines(stdout) {
			if len(line) > 129 {
				t.Errorf("%s: a line of %d bytes: %s", topic.Name(), len(line), line)
			}
			for words := range strings.SplitSeq(strings.TrimSpace(line), "&&") {
				command, is := strings.CutPrefix(strings.TrimSpace(words), "farkv ")
				if is && !strings.Contains(command, "farkv ") { // SEE ALSO has several
					if wrong := startsFarkv("farkv " + command); wrong != "" {
						t.Errorf("%s: %s: %s", topic.Name(), line, wrong)
					}
				}
			}
		}
	}
}
