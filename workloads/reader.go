package workloads

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Properties are names with values; those of package github.com/magiconair/properties have this
// method.
type Properties interface {
	Get(name string) (value string, ok bool)
}

// UsageError is a user's mistake, told in one line that says what to do instead.
type UsageError struct{ Reason string }

func (e *UsageError) Error() string { return e.Reason }

// Usagef returns a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// Reader reads typed properties. Those that are not set have the default that each method is given.
type Reader struct {
	Properties
	Err error // the first, a UsageError
}

// Fail keeps an error that says what a property has to be, unless there is an error already.
func (r *Reader) Fail(name, value, want string) {
	if r.Err == nil {
		r.Err = Usagef("property %s=%s: want %s", name, value, want)
	}
}

// Text returns a text as it is.
func (r *Reader) Text(name, def string) string {
	if v, ok := r.Get(name); ok {
		return v
	}
	return def
}

// Choice returns one of the words; the first is the default.
func (r *Reader) Choice(name string, words ...string) string {
	v := strings.ToLower(strings.TrimSpace(r.Text(name, words[0])))
	if !slices.Contains(words, v) {
		r.Fail(name, v, "one of "+strings.Join(words, ", "))
	}
	return v
}

// Count returns a whole number from min to max.
func (r *Reader) Count(name string, def, min, max int64) int64 {
	return Parsed(r, name, def, func(text string) (int64, string) {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, unless(err == nil && n >= min && n <= max, fmt.Sprintf("a number from %d to %d", min, max))
	})
}

// Number returns a number strictly between min and max; the default is not bound.
func (r *Reader) Number(name string, def, min, max float64) float64 {
	return Parsed(r, name, def, func(text string) (float64, string) {
		n, err := strconv.ParseFloat(text, 64)
		return n, unless(err == nil && n > min && n < max, fmt.Sprintf("a number between %v and %v", min, max))
	})
}

// Share returns a number from 0 to 1.
func (r *Reader) Share(name string, def float64) float64 {
	return Parsed(r, name, def, func(text string) (float64, string) {
		n, err := strconv.ParseFloat(text, 64)
		return n, unless(err == nil && n >= 0 && n <= 1, "a number from 0 to 1")
	})
}

// Bool returns true or false.
func (r *Reader) Bool(name string, def bool) bool {
	return Parsed(r, name, def, func(text string) (bool, string) {
		b, err := strconv.ParseBool(strings.ToLower(text))
		return b, unless(err == nil, "true or false")
	})
}

// Parsed returns a property of any type. Parse reads it and says what is wanted instead; "": it is
// what is wanted.
func Parsed[T any](r *Reader, name string, def T, parse func(text string) (v T, want string)) T {
	text, ok := r.Get(name)
	if !ok {
		return def
	}
	v, want := parse(strings.TrimSpace(text))
	if want != "" {
		r.Fail(name, strings.TrimSpace(text), want)
	}
	return v
}

func unless(good bool, want string) string {
	if good {
		return ""
	}
	return want
}
