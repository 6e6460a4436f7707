package monitor

import (
	"context"
	"errors"
	"io"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui"
)

// Looked is one look at a pool: a sample, and a frame that shows it.
type Looked struct {
	*telemetry.Sample
	frame string
}

// Print implements Result.
func (l *Looked) Print(w io.Writer) { _, _ = io.WriteString(w, l.frame) }

// frameWidth and frameHeight are the size of a frame as text.
const (
	frameWidth  = 100
	frameHeight = 32
)

// LookOnce reads a source: of a recording all samples that come without waiting, of a pool one
// sample, or two when frame is set, because a frame shows rates. The caller closes the source. For
// a pool that cannot be opened LookOnce returns both what the nodes report and an error.
func LookOnce(ctx context.Context, from tui.Source, frame, unicode bool) (*Looked, error) {
	wanted := 1
	if frame {
		wanted = 2
	}
	if _, ok := from.(tui.Replay); ok {
		wanted = -1 // all
	}
	var all []*telemetry.Sample
	for len(all) != wanted {
		s, err := from.Next(ctx)
		if errors.Is(err, io.EOF) && len(all) > 0 {
			break
		}
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	l := &Looked{Sample: all[len(all)-1]}
	if frame {
		l.frame = tui.Frame(all, 0, frameWidth, frameHeight, unicode)
	}
	if l.Store == "" { // it was never open
		return l, errors.New(l.Problem)
	}
	return l, nil
}
