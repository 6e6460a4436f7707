package tui

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/term"

	"github.com/farkv/farkv/tui/early"
)

func init() { early.Done() }

// answerWithin bounds the wait for the terminal's answer. One that is later is taken out of the
// keys: see answerless.
const answerWithin = 200 * time.Millisecond

// askBackground asks for the background's color, and then where the cursor is, which all terminals
// answer.
const askBackground = "\x1b]11;?\x1b\\\x1b[6n"

// answers are what terminals say to askBackground.
var answers = regexp.MustCompile(`\x1b\]11;[^\x07\x1b]*(\x07|\x1b\\)|\x1b\[\d+;\d+R`)

// darkBackground reports whether the terminal's background is dark, as $COLORFGBG or the terminal
// itself says; true where neither does.
func darkBackground(getenv func(string) string) bool {
	if v := getenv("COLORFGBG"); v != "" {
		n, err := strconv.Atoi(v[strings.LastIndex(v, ";")+1:])
		return err != nil || n < 7 || n == 8
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return true
	}
	defer tty.Close()
	raw, err := tty.SyscallConn()
	if err != nil || tty.SetDeadline(time.Now().Add(answerWithin)) != nil {
		return true // it cannot be waited for with a limit
	}
	var before *term.State
	if raw.Control(func(fd uintptr) { before, err = term.MakeRaw(fd) }) != nil || err != nil {
		return true
	}
	defer func() { _ = raw.Control(func(fd uintptr) { _ = term.Restore(fd, before) }) }()
	return askDark(tty)
}

// askDark asks a terminal, and reads until it said where the cursor is.
func askDark(tty io.ReadWriter) bool {
	if _, err := io.WriteString(tty, askBackground); err != nil {
		return true
	}
	var said []byte
	for p := make([]byte, 64); !bytes.HasSuffix(said, []byte("R")) && len(said) < 1024; {
		n, err := tty.Read(p)
		if said = append(said, p[:n]...); err != nil {
			break
		}
	}
	return isDark(said)
}

var rgb = regexp.MustCompile(`\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})`)

// isDark reports whether a terminal's answer names a color that is nearer to black than to white,
// or none.
func isDark(said []byte) bool {
	parts := rgb.FindSubmatch(said)
	if parts == nil {
		return true
	}
	luma := 0.0
	for i, weight := range []float64{0.299, 0.587, 0.114} {
		hex := string(parts[1+i])
		n, _ := strconv.ParseUint(hex, 16, 16)
		luma += weight * float64(n) / float64(uint(1)<<(4*len(hex))-1)
	}
	return luma < 0.5
}

// answerless is a terminal of which answers that came too late are no keys.
type answerless struct{ *os.File }

func (a answerless) Read(p []byte) (int, error) {
	n, err := a.File.Read(p)
	return copy(p, answers.ReplaceAll(p[:n], nil)), err
}
