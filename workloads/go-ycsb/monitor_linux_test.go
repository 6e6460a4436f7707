package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/farkv/farkv/tui/tuitest"
)

// A run with --monitor shows its pool, and gives the terminal back: at its end, for q, and for
// Ctrl-C.
func TestMonitor(t *testing.T) {
	t.Parallel()
	env := append(os.Environ(), "FARKV_SHM_DIR="+t.TempDir(), "TERM=xterm-256color", "LANG=C.UTF-8")
	common := []string{"fusee", "-P", "workloada", "-p", "recordcount=100", "--threads", "2"}
	load := exec.Command("go-ycsb", append([]string{"load"}, common...)...)
	load.Env = env
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("load: %v\n%s", err, out)
	}
	run := append([]string{"run", "-p", "operationcount=1000000000", "--target", "100", "--interval", "1", "--monitor"},
		common...)
	const goesOn = `The monitor is closed; the run goes on\.\s*\n\[\d+s\] .*\n`
	for _, c := range []struct {
		name, key    string
		seconds      int // 0: the run has no end
		status       int
		after, never string // the terminal was given back
	}{
		{"end", "", 5, 0, `Run finished.*\n(.*\n)*TOTAL`, `\n\[\d+s\]`},
		{"q", "q", 0, 130, goesOn + `(.*\n)*go-ycsb: interrupt: (.*\n)*TOTAL`, `interrupt(.|\n)*the run goes on`},
		{"Ctrl-C", "\x03", 0, 130,
			`interrupt: stopping; once more(.*\n)*TOTAL(.*\n)*go-ycsb: interrupted: the results are those of`,
			`the run goes on`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "go-ycsb", append(run, "-p",
				fmt.Sprint("maxexecutiontime=", c.seconds))...)
			cmd.Env = env
			terminal := tuitest.Start(t, 80, 24, cmd)
			terminal.Find(`Overview(.|\n)*whole(.|\n)*update [1-9]`) // a rate: of two samples
			terminal.Type(c.key)
			if c.name == "q" {
				terminal.Find(goesOn)
				_ = cmd.Process.Signal(os.Interrupt) // else it has ended, and the status says so
			}
			before, shown, after := terminal.End()
			if got := cmd.ProcessState.ExitCode(); got != c.status {
				t.Errorf("exit status %d, want %d", got, c.status)
			}
			if !bytes.Contains(before, []byte("fusee over shm")) {
				t.Errorf("before the monitor: %q", before)
			}
			status := regexp.MustCompile(`\d+s\] \d+ operations`)
			if status.Match(before) || status.Match(shown) {
				t.Errorf("a status line was printed into the monitor")
			}
			if !regexp.MustCompile(c.after).Match(after) || regexp.MustCompile(c.never).Match(after) {
				t.Errorf("after the monitor: %q", after)
			}
		})
	}
}
