package transport

import (
	"net"
	"time"
)

// InKernel takes a connection out of Go's poller; see blocking.
func InKernel(c *net.TCPConn, read, write time.Duration) (net.Conn, error) {
	b, err := NewBlocking(c, read, write, func() {})
	if err != nil {
		return nil, err
	}
	b.LeavePoller()
	return b, nil
}

// Spin looks for input on c so many times, and returns for each how many messages would be waited
// for asleep behind it.
func Spin(c net.Conn, times int) (spared []int) {
	s := newSpinner(c)
	if b, ok := c.(*Blocking); ok {
		s = b.spin
	}
	for range times {
		s.spare = 0
		s.spin()
		spared = append(spared, s.spare)
	}
	return spared
}
