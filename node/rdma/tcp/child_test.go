package tcp_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// childMain is the main of another process. It ends when its input does.
func childMain(args []string) error {
	switch what := args[0]; what {
	case "node":
		return childNode(memnode.Config{Listen: args[1]})
	case "remember":
		r, err := pmem.Open(args[2], regionOptions)
		if err != nil {
			return err
		}
		return childNode(memnode.Config{Listen: args[1], Region: r})
	case "guarded":
		return childGuarded()
	case "flood":
		return childFlood(args[1], args[2])
	case "create":
		f, err := tcp.Create(control.Options{Addresses: strings.Split(args[1], ",")},
			control.Geometry{Nodes: strings.Count(args[1], ",") + 1, Memory: 4096,
				Clients: 4}, func(*tcp.Fabric) error {
				fmt.Println("formatting")
				_, err := io.Copy(io.Discard, os.Stdin)
				return err
			})
		return errors.Join(err, f.Close())
	default:
		f, err := tcp.Open(control.Options{Addresses: strings.Split(args[1], ",")})
		if err != nil {
			return err
		}
		ep, err := f.Open(what)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		return errors.Join(clientRole(args, f, ep), ep.Close(), f.Close())
	}
}

func clientRole(args []string, f *tcp.Fabric, ep rdma.Endpoint) error {
	what := args[0]
	if role, ok := strings.CutPrefix(what, "role-"); ok {
		return rdmatest.Role(role)(f, ep)
	}
	switch what {
	case "stand": // still, twice
		return standStill(args[2], f, ep)
	case "ask", "listen", "count": // a node a question, and stand still
		return standStillAsking(what, f, ep)
	case "add": // without end
		fmt.Println(ep.Client())
		for {
			if _, err := add(ep, 0, 0); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("no child %q", what)
}

func childNode(c memnode.Config) error {
	c.Memory, c.Handler = 1<<20, addByCall
	n, err := memnode.Listen(c)
	if err != nil {
		return err
	}
	fmt.Println(n.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, n.Close())
}

// nodeProcesses starts n nodes, each a process.
func nodeProcesses(t testing.TB, n int) (nodes []*child.Process, addrs []string) {
	t.Helper()
	for range n {
		addr := child.Address(t)
		nodes, addrs = append(nodes, again(t, addr)), append(addrs, addr)
	}
	return nodes, addrs
}
