package transport

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
)

const (
	// Ports for nodes that remember: such a node comes back at its address. They are below those
	// that the system gives to listeners on port 0 and to connections, which would take it
	// meanwhile.
	firstPort, lastPort = 10_000, 19_999
	// portTries bounds how many ports are drawn. So many in a row are taken only if almost all are.
	portTries = 100
)

// Listen listens at HOST:PORT. For a node that comes back to its address it draws the port itself
// where that is 0, unless the system gives away all ports by itself.
func Listen(addr string, comesBack bool) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" || !comesBack || firstOfSystem() <= lastPort {
		return net.Listen("tcp", addr)
	}
	return listenAtDrawn(host, func() int { return firstPort + rand.IntN(lastPort-firstPort+1) })
}

// listenAtDrawn listens at the first port that is drawn and that no listener has.
func listenAtDrawn(host string, draw func() int) (l net.Listener, err error) {
	for range portTries {
		l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(draw())))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, err
}

// firstOfSystem returns the first port that the system gives away by itself; 0: it is not known.
func firstOfSystem() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	first, _, _ := bytes.Cut(text, []byte("\t"))
	n, _ := strconv.Atoi(string(first)) // 0 for what is no number
	return n
}
