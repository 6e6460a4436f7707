package daemon

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster"
)

// Failures in a row are written once a minute, and the first behind anything else at once.
func TestEventLog(t *testing.T) {
	var out strings.Builder
	write := eventLog(slog.New(slog.NewTextHandler(&out, nil)))
	fail := func(at time.Duration) {
		write(cluster.Event{At: at, What: cluster.Failed, Err: errors.New("out of reach")})
	}
	for at := time.Hour; at <= time.Hour+failureEvery; at += time.Second {
		fail(at)
	}
	write(cluster.Event{What: cluster.Elected})
	fail(time.Hour + failureEvery + 1)
	var events []string
	for line := range strings.Lines(out.String()) {
		_, after, _ := strings.Cut(line, "event=")
		events = append(events, strings.TrimSpace(after))
	}
	const want = "failed unwritten=0, failed unwritten=59, elected, failed unwritten=0"
	if got := strings.Join(events, ", "); got != want {
		t.Errorf("wrote %s, want %s", got, want)
	}
}
