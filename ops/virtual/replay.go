package virtual

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads/recording"
)

// replayHistory is how far before the target of Seek a replay begins. It is what a monitor
// remembers.
const replayHistory = time.Hour

// Replay plays a recording as if its pool were sampled now: it is a tui.Replay. It is not safe for
// concurrent use.
type Replay struct {
	file  *recording.OpenFile
	next  int       // the sample that Next returns
	at    time.Time // of the recording, when the clock was set
	set   time.Time // of this machine, then
	speed float64   // 0: it stands
	now   func() time.Time
}

// OpenReplay opens a recording at its beginning.
func OpenReplay(name string) (*Replay, error) {
	file, err := recording.Open(name)
	if err != nil {
		return nil, fmt.Errorf("replay %s: %w", name, err)
	}
	r := &Replay{file: file, speed: 1, now: time.Now}
	r.at, r.set = file.Time(0), r.now()
	return r, nil
}

// OpenReplayAtEnd opens a recording at its end. Next returns the last hour without waiting.
func OpenReplayAtEnd(name string) (*Replay, error) {
	r, err := OpenReplay(name)
	if err == nil {
		_, last := r.Span()
		err = r.Seek(last)
	}
	return r, err
}

// Problem returns why the recording is incomplete. "": it is complete.
func (r *Replay) Problem() string { return r.file.Problem() }

// Close closes the file.
func (r *Replay) Close() error { return r.file.Close() }

// Span returns the times of the first and the last sample.
func (r *Replay) Span() (from, to time.Time) { return r.file.Time(0), r.file.Time(r.file.Len() - 1) }

// clock returns the time of the recording.
func (r *Replay) clock() time.Time {
	return r.at.Add(time.Duration(float64(r.now().Sub(r.set)) * r.speed))
}

// Seek goes to a time. Next returns the samples of up to an hour before it without waiting.
func (r *Replay) Seek(to time.Time) error {
	from, last := r.Span()
	if to.Before(from) {
		to = from
	}
	if to.After(last) {
		to = last
	}
	r.next = r.file.Find(to.Add(-replayHistory))
	r.at, r.set = to, r.now()
	return nil
}

// SetSpeed sets how fast the recording's time passes, 1 being real time. 0 is a pause: Next waits
// until its ctx ends.
func (r *Replay) SetSpeed(factor float64) {
	r.at, r.set = r.clock(), r.now()
	r.speed = factor
}

// Next waits until it is time for the next sample. At the end it returns io.EOF.
func (r *Replay) Next(ctx context.Context) (*telemetry.Sample, error) {
	if r.next >= r.file.Len() {
		return nil, io.EOF
	}
	if ahead := r.file.Time(r.next).Sub(r.clock()); ahead > 0 {
		due := (<-chan time.Time)(nil)
		if r.speed > 0 {
			timer := time.NewTimer(time.Duration(float64(ahead) / r.speed))
			defer timer.Stop()
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-due:
		}
	}
	r.next++
	return r.file.Sample(r.next - 1)
}
