package consul

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/farkv/farkv/node/rdma"
)

// Errors that callers branch on, besides membership.ErrUnreachable.
var (
	ErrAddress = errors.New("bad address of Consul")
	ErrNoPool  = rdma.ErrNoPool
	ErrExists  = rdma.ErrExists
	ErrFormat  = errors.New("not a farkv pool's record")
)

// Parse splits HOST:PORT/POOL, which follows "consul:" in a pool's address. Errors wrap ErrAddress.
func Parse(address string) (agent, pool string, err error) {
	agent, pool, ok := strings.Cut(address, "/")
	if !ok {
		return "", "", fmt.Errorf("%w %q: want HOST:PORT/POOL, as in 127.0.0.1:8500/mypool", ErrAddress, address)
	}
	if err := checkAgent(agent); err != nil {
		return "", "", err
	}
	return agent, pool, checkName(pool)
}

// checkAgent returns an error unless address is HOST:PORT.
func checkAgent(address string) error {
	host, port, err := net.SplitHostPort(address)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil || n == 0 ||
		strings.ContainsAny(host, "/?#@ ") {
		return fmt.Errorf("%w %q: want HOST:PORT, as in 127.0.0.1:8500", ErrAddress, address)
	}
	return nil
}

// checkName allows the names that pools in shared memory may have, too, so that a pool can move
// there.
func checkName(name string) error {
	if !rdma.IsPoolName(name) {
		return fmt.Errorf("%w: bad pool name %q: want %s", ErrAddress, name, rdma.PoolNames)
	}
	return nil
}
