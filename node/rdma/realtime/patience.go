package realtime

import "time"

// parts is into how many parts a wait for another process is divided.
const parts = 8

// Patience is a wait for another process, as long as this one can tell. Time for which this process
// stands still, since its machine is busy or it is stopped, counts for one part of the wait,
// whatever it takes, and never for the last one: what came meanwhile is not read yet. It takes
// twice as many parts at most.
type Patience struct {
	part  time.Duration
	left  int
	until time.Duration // the end of this part, on Now
}

// Within begins a wait of that long.
func Within(d time.Duration) Patience {
	part := max(d/parts, 1)
	return Patience{part, parts, Now() + part}
}

// Until returns when to call Over next, on Now.
func (p *Patience) Until() time.Duration { return p.until }

// Over reports whether the wait is over.
func (p *Patience) Over() bool { return p.over(Now()) }

func (p *Patience) over(now time.Duration) bool {
	if now < p.until {
		return false
	}
	late := now-p.until > p.part
	if p.left--; p.left <= 0 && !late || p.left <= -parts {
		p.left = -parts
		return true
	}
	p.until = now + p.part
	return false
}
