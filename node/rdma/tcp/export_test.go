package tcp

import (
	"net"
	"time"
)

// MaxLease is the longest lease that a pool can have.
const MaxLease = maxLease

// HasMajority reports whether the nodes that keep the board are connected, so that clients can be
// given back.
func (f *Fabric) HasMajority() bool { return f.hasMajority() }

// Expelled reports whether the node knows that it was.
func (n *Node) Expelled() bool { p := n.pool.Load(); return p != nil && p.expelled.Load() }

// NewBlocking takes a connection out of Go's poller; see blocking.
func NewBlocking(c *net.TCPConn, read, write time.Duration) (net.Conn, error) {
	b, err := newBlocking(c, read, write, func() {})
	if err != nil {
		return nil, err
	}
	b.leavePoller()
	return b, nil
}

// Spin looks for input on c so many times, and returns for each how many messages would be waited
// for asleep behind it.
func Spin(c net.Conn, times int) (spared []int) {
	s := newSpinner(c)
	if b, ok := c.(*blocking); ok {
		s = b.spin
	}
	for range times {
		s.spare = 0
		s.spin()
		spared = append(spared, s.spare)
	}
	return spared
}

// MostGreeting is how many connections may be open that have said nothing.
func (n *Node) MostGreeting() int { return n.mostGreeting }

// LargeBuffers is how many connections with the same kind of token may have long answers at a time.
const LargeBuffers = classLarge

// SlowPenalty is for how long the place of a reader that took no answers stays taken.
const SlowPenalty = slowPenalty

// WritePatience is for how long a writer may take none of its answers where no other connection
// waits.
const WritePatience = writePatience

// ReadersLeft is how many more connections with the read token the node takes.
func (n *Node) ReadersLeft() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, readers := n.callers()
	return mostReaders(n.cfg.Conns) - readers - len(n.barred)
}

// LongAnswers is how many connections, but those with the read token, have a large buffer.
func (n *Node) LongAnswers() int { return len(n.outputs.slots) }
