package realtime

import (
	"testing"
	"time"
)

// TestPatience has waits stand still: for as long as one takes, in each of its parts, and again and
// again.
func TestPatience(t *testing.T) {
	const whole, part = 8 * time.Second, time.Second
	for still := range 9 {
		p, now := Patience{part, parts, part}, time.Duration(0)
		ran := time.Duration(0)
		for n := 1; ; n++ {
			now, ran = max(now, p.Until()), ran+part
			if n == still {
				now += 2 * whole
			}
			if p.over(now) {
				if !p.over(now + 5*whole) {
					t.Errorf("stood still in part %d: it was over, and is not", still)
				}
				break
			}
			if p.over(now) {
				t.Errorf("stood still in part %d: over before the end of part %d", still, n+1)
			}
		}
		if want := whole + map[bool]time.Duration{true: part}[still == 8]; ran != want {
			t.Errorf("stood still in part %d: over when it had waited for %v, want %v", still, ran, want)
		}
	}
	p, n := Patience{part, parts, part}, 1
	for ; !p.over(p.Until() + 2*part); n++ {
	}
	if n != 2*parts {
		t.Errorf("each part is late: over behind %d parts, want %d", n, 2*parts)
	}
}
