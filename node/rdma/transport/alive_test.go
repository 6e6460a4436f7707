package transport

import (
	"testing"
	"time"
)

// TestGivesUp has a process look at a node each 100 ms, stand still between the looks at 2 s and
// 3.3 s, and hear nothing more. Of the time before the last word no bit counts as stood still.
func TestGivesUp(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name        string
		last        time.Duration // when the last word before 2 s was heard; until then each look finds one
		after, dead time.Duration // when one was heard behind that; when the node is given up
	}{
		{"it has asked", 1700 * ms, 0, 4000 * ms},
		{"it asks when it goes on", 2000 * ms, 0, 4300 * ms},
		{"a word comes as it goes on", 2000 * ms, 3299 * ms, 4400 * ms},
		{"a word comes later", 2000 * ms, 3600 * ms, 4700 * ms},
	} {
		var p ping
		var now, looked, heard, silent time.Duration
		for silent <= DeadAfter && now < 10*time.Second {
			if now = looked + 100*ms; now == 2100*ms {
				now = 3300 * ms
			}
			heard = max(heard, min(now, c.last))
			if now >= c.after {
				heard = max(heard, c.after)
			}
			silent, _ = p.turn(now, looked, heard, false)
			looked = now
		}
		if now != c.dead {
			t.Errorf("%s: given up at %v, want %v", c.name, now, c.dead)
		}
	}
}
