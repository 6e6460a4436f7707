package tui

import (
	"bytes"
	"io"
	"os"
	"testing"
)

// asked is a terminal that answers in pieces, and is then silent.
type asked struct {
	said   bytes.Buffer
	answer []string
}

func (a *asked) Write(p []byte) (int, error) { return a.said.Write(p) }

func (a *asked) Read(p []byte) (int, error) {
	if len(a.answer) == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	n := copy(p, a.answer[0])
	a.answer = a.answer[1:]
	return n, nil
}

func TestBackground(t *testing.T) {
	for _, c := range []struct {
		answer []string
		dark   bool
	}{
		{nil, true},
		{[]string{"\x1b[1;1R"}, true},
		{[]string{"\x1b]11;rgb:ffff/ffff/ff", "ff\x1b\\\x1b[1;1R"}, false},
		{[]string{"\x1b]11;rgb:ff/fa/e0\x07", "\x1b[24;80R", "unread"}, false},
		{[]string{"\x1b]11;rgb:1e1e/1e1e/2e2e\x1b\\"}, true},
		{[]string{"\x1b]11;rgb:eeee/eeee/eeee\x1b\\"}, false},
		{[]string{"\x1b]11;rgb:zz\x1b\\\x1b[1;1R"}, true},
	} {
		tty := &asked{answer: c.answer}
		if got := askDark(tty); got != c.dark || tty.said.String() != askBackground {
			t.Errorf("a terminal that answers %q: dark %v, want %v; it was asked %q", c.answer, got, c.dark,
				tty.said.String())
		}
		if len(tty.answer) > 0 && tty.answer[0] != "unread" {
			t.Errorf("of %q was not read: %q", c.answer, tty.answer)
		}
	}
	for v, dark := range map[string]bool{"15;0": true, "0;15": false, "0;default;7": false, "12;8": true, "x": true} {
		if got := darkBackground(func(string) string { return v }); got != dark {
			t.Errorf("COLORFGBG %s: dark %v, want %v", v, got, dark)
		}
	}
}

// An answer that comes late is no key.
func TestLateAnswerIsNoKey(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		io.WriteString(w, "q\x1b]11;rgb:1e1e/1e1e/2e2e\x1b\\\x1b[24;80Rp\x1b[A\x1b")
		w.Close()
	}()
	if got, err := io.ReadAll(answerless{r}); err != nil || string(got) != "qp\x1b[A\x1b" {
		t.Errorf("keys %q, %v", got, err)
	}
}
