package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"

	kv "github.com/farkv/farkv/client"
	"github.com/farkv/farkv/tui"
)

// The exit statuses.
const (
	exitFailed      = 1
	exitMisuse      = 2
	exitNotFound    = 3
	exitInterrupted = 130
)

// failure is an error that is no misuse of the command line.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// notFound is a failure of get or del for the only reason that the key is not there.
type notFound struct{ error }

func (n notFound) Unwrap() error { return n.error }

// keyed marks the error of an operation on a key where its reason is that the key is not there.
func keyed(err error) error {
	if errors.Is(err, kv.ErrNotFound) && !errors.Is(err, kv.ErrUncertain) {
		return notFound{err}
	}
	return err
}

// exitStatus returns the status by which a command that ended with err exits, and the error as one
// line.
func exitStatus(ctx context.Context, err error) (status int, line string) {
	line = strings.Join(strings.Fields(err.Error()), " ")
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted, "interrupted"
	case errors.Is(err, tui.ErrInterrupted):
		return exitInterrupted, line
	case errors.As(err, new(notFound)):
		return exitNotFound, line
	case errors.As(err, new(failure)):
		return exitFailed, line
	}
	return exitMisuse, line
}

// tellFailure writes a failure to standard error as one line, which is a JSON object where asJSON
// says so.
func tellFailure(w io.Writer, asJSON bool, status int, line string) {
	if !asJSON {
		fmt.Fprintf(w, "farkv: %s\n", line)
		return
	}
	what, hint := splitHint(line)
	text, err := json.Marshal(struct {
		Version int    `json:"version"`
		Error   string `json:"error"`
		Hint    string `json:"hint,omitempty"`
		Status  int    `json:"status"`
	}{jsonVersion, what, hint, status})
	if err != nil {
		text = []byte(`{"error":"the failure cannot be written as JSON"}`)
	}
	fmt.Fprintf(w, "%s\n", text)
}

// splitHint takes the hint out of an error's text, where that has one, as in "no such pool (hint:
// 'farkv up' makes one)".
func splitHint(text string) (what, hint string) {
	const mark = " (hint: "
	before, rest, found := strings.Cut(text, mark)
	if !found {
		return text, ""
	}
	open := 1
	for i, c := range rest {
		switch c {
		case '(':
			open++
		case ')':
			open--
		}
		if open == 0 {
			return before + rest[i+1:], rest[:i]
		}
	}
	return text, ""
}

// asksJSON reports whether the arguments ask for JSON, whatever else is wrong with them: cobra
// reads no flag behind one that it does not know.
func asksJSON(args []string) bool {
	f := pflag.NewFlagSet("farkv", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	output := f.StringP("output", "o", "text", "")
	f.BoolP("help", "h", false, "")
	f.BoolP("quiet", "q", false, "")
	_ = f.Parse(args) // what is wrong with them is told already
	return *output == "json"
}
