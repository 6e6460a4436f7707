// Package tui is the monitor's program: it draws samples of a pool on a terminal, page by page, and
// takes keys. Samples come from a Source, failures go to a pages.Breaker; the command makes both.
package tui

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/pages"
)

// A Source yields samples of one pool. Its methods are called by one goroutine, one at a time.
type Source interface {
	// Next waits for the next sample, and returns io.EOF where a recording ends. Any other error
	// means that the pool cannot be seen now: it is shown, and Next is called again after a second.
	// One that wraps ErrGone ends the program.
	Next(ctx context.Context) (*telemetry.Sample, error)
	Close() error
}

// A Replay is a source that can be controlled.
type Replay interface {
	Source
	// Span returns the times of the first and the last sample.
	Span() (from, to time.Time)
	// Seek goes to a time. Next then returns all samples from (at most an hour) before it without
	// waiting, and goes on as time passes.
	Seek(to time.Time) error
	// SetSpeed makes time pass faster or slower than the wall's; 0 is a pause, in which Next waits
	// for ctx.
	SetSpeed(factor float64)
}

// A Session is what was opened of a pool.
type Session struct {
	Source Source
	// Breaker is nil where nothing may be broken, and WhyNot says why.
	Breaker pages.Breaker
	WhyNot  string
}

// A Pool can be chosen.
type Pool struct {
	Name  string // what Open takes
	About string // such as the store and the nodes
}

// Options are what the program is given.
type Options struct {
	// Pools are those to choose from; one alone is opened without a question.
	Pools []Pool
	// Open opens a pool by its name. The program closes the session's source.
	Open func(ctx context.Context, pool string) (*Session, error)
	// SVG writes a figure as a drawing; nil: it cannot.
	SVG func(w io.Writer, f *pages.Figure) error
	// Folder is where exports go; "": the working directory.
	Folder string
	// ReadOnly takes away all keys that could break anything.
	ReadOnly bool
	// Light and Dark say what the background is; with neither the terminal is asked.
	Light, Dark bool
	// Page is the number of the first page, from 0.
	Page int

	// In and Out stand for the terminal in tests; nil: standard input and output.
	In  io.Reader
	Out io.Writer
}

// Errors with which Run ends.
var (
	// ErrGone means that the pool is gone for good.
	ErrGone = errors.New("the pool is gone")
	// ErrInterrupted means that a key or a signal ended the program.
	ErrInterrupted = errors.New("interrupted")
)
