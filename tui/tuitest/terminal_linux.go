package tuitest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/sys/unix"
)

// A Terminal is a pseudo-terminal with a program on it. It answers nothing that it is asked.
type Terminal struct {
	Command *exec.Cmd

	t        testing.TB
	emulator *os.File
	before   *unix.Termios
	read     chan struct{} // closed when the program's end is
	mu       sync.Mutex
	drawn    bytes.Buffer
}

// Start runs a command on a new terminal of w by h. The command ends with the test.
func Start(t testing.TB, w, h int, cmd *exec.Cmd) *Terminal {
	t.Helper()
	emulator, program := Pseudo(t, w, h)
	x := &Terminal{Command: cmd, t: t, emulator: emulator, read: make(chan struct{})}
	x.before = x.settings()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err := cmd.Start()
	program.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	go func() {
		defer close(x.read)
		_, _ = io.Copy(x, emulator) // until the program closes its end
	}()
	return x
}

// Pseudo returns both ends of a new terminal of w by h: the emulator's, which is closed with the
// test, and the program's.
func Pseudo(t testing.TB, w, h int) (emulator, program *os.File) {
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
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(h), Col: uint16(w)})
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return emulator, program
}

// settings are the terminal's: both ends have the same.
func (x *Terminal) settings() *unix.Termios {
	x.t.Helper()
	s, err := unix.IoctlGetTermios(int(x.emulator.Fd()), unix.TCGETS)
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

// Write notes what the program drew.
func (x *Terminal) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.drawn.Write(p)
}

// Drawn returns all that was drawn so far, escape sequences included.
func (x *Terminal) Drawn() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	return bytes.Clone(x.drawn.Bytes())
}

// Find waits until what matches what is drawn, without escape sequences.
func (x *Terminal) Find(what string) {
	x.t.Helper()
	matches := regexp.MustCompile(what)
	for until := time.Now().Add(2 * time.Minute); !matches.MatchString(ansi.Strip(string(x.Drawn()))); time.Sleep(
		10 * time.Millisecond) {
		select {
		case <-x.read:
			x.t.Fatalf("the program ended, and never drew %s: %s", what, ansi.Strip(string(x.Drawn())))
		default:
		}
		if time.Now().After(until) {
			x.t.Fatalf("never drawn: %s", what)
		}
	}
}

// Type presses keys.
func (x *Terminal) Type(keys string) {
	x.t.Helper()
	if _, err := io.WriteString(x.emulator, keys); err != nil {
		x.t.Fatal(err)
	}
}

// Wait waits for the program's end.
func (x *Terminal) Wait() {
	_ = x.Command.Wait() // ProcessState has how it ended
	<-x.read
}

// The sequences by which a program takes the whole screen, and gives it back.
const (
	Entered = "\x1b[?1049h"
	Left    = "\x1b[?1049l"
)

// End waits for the program's end. The terminal must be as it was: the other screen left, the
// cursor shown, the mouse given back, the settings as before. It returns what was drawn before the
// program took the whole screen, on it, and behind it.
func (x *Terminal) End() (before, shown, after []byte) {
	x.t.Helper()
	x.Wait()
	drawn := x.Drawn()
	before, rest, _ := bytes.Cut(drawn, []byte(Entered))
	at := bytes.LastIndex(rest, []byte(Left))
	if at < 0 {
		x.t.Fatalf("the screen was not given back: %q", drawn)
	}
	for _, mode := range []string{"25h", "1002l", "1006l"} {
		on, off := []byte("\x1b[?"+mode[:len(mode)-1]+"h"), []byte("\x1b[?"+mode[:len(mode)-1]+"l")
		if shownLast := bytes.LastIndex(drawn, on) > bytes.LastIndex(drawn, off); shownLast != (mode == "25h") {
			x.t.Errorf("the terminal's mode %s was not restored", mode)
		}
	}
	if is := x.settings(); *is != *x.before {
		x.t.Errorf("the terminal's settings were %+v, and are %+v", *x.before, *is)
	}
	return before, rest[:at], rest[at+len(Left):]
}
