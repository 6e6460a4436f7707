package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// pseudoTerminal returns both ends of a terminal of 80 by 24: the emulator's and the program's.
func pseudoTerminal(t *testing.T) (emulator, program *os.File) {
	t.Helper()
	emulator, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("there are no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { emulator.Close() })
	fd := int(emulator.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80})
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return emulator, program
}

// monitored starts a run on a terminal, and collects what it draws.
func monitored(t *testing.T, args ...string) (drawn *said, keys io.Writer, run *exec.Cmd, ended chan error) {
	t.Helper()
	emulator, program := pseudoTerminal(t)
	run = exec.CommandContext(t.Context(), "go-ycsb", args...)
	run.Stdin, run.Stdout, run.Stderr = program, program, program
	run.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	// A terminal of this name is not asked for its background, which nothing would answer.
	run.Env = append(os.Environ(), "TERM=screen", "LANG=C.UTF-8")
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	program.Close()
	drawn, ended = new(said), make(chan error, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		io.Copy(drawn, emulator) // until the program closes its end
	}()
	go func() {
		err := run.Wait()
		<-read
		ended <- err
	}()
	return drawn, emulator, run, ended
}

// A run with --monitor shows its pool, and gives the terminal back: at its end, for q, and for Ctrl-C.
func TestMonitor(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	common := []string{"fusee", "-P", "workloada", "-p", "recordcount=100", "--threads", "2"}
	if status := execute(append([]string{"load"}, common...), strings.NewReader(""), io.Discard, io.Discard); status != 0 {
		t.Fatalf("load: %d", status)
	}
	run := append([]string{"run", "-p", "operationcount=1000000000", "--target", "1000", "--interval", "1", "--monitor"}, common...)
	const entered, left = "\x1b[?1049h", "\x1b[?1049l"
	for _, c := range []struct {
		name, seconds, key string
		status             int
		after, never       string // the terminal was given back
	}{
		{"end", "5", "", 0, `Run finished.*\n(.*\n)*TOTAL`, `\n\[\d+s\]`},
		{"q", "6", "q", 0, `The monitor is closed; the run goes on\.\s*\n\[\d+s\] .*\n(.*\n)*TOTAL`, `interrupt`},
		{"Ctrl-C", "30", "\x03", 130, `interrupt: stopping; once more(.*\n)*TOTAL(.*\n)*go-ycsb: interrupted: the results are those of`,
			`the run goes on`},
	} {
		t.Run(c.name, func(t *testing.T) {
			drawn, keys, cmd, ended := monitored(t, append(run, "-p", "maxexecutiontime="+c.seconds)...)
			drawn.find(t, regexp.MustCompile(`Overview(.|\n)*whole(.|\n)*update [1-9]`)) // a rate: of two samples
			if _, err := io.WriteString(keys, c.key); err != nil {
				t.Fatal(err)
			}
			<-ended
			text := drawn.text.Bytes()
			if got := cmd.ProcessState.ExitCode(); got != c.status {
				t.Errorf("exit status %d, want %d", got, c.status)
			}
			before, rest, _ := bytes.Cut(text, []byte(entered))
			shown, after, ok := bytes.Cut(rest, []byte(left))
			if !ok {
				t.Fatalf("the terminal was not given back: %q", text)
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
