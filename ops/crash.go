package ops

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

// Crashed is what was broken on purpose.
type Crashed struct {
	Pool    string    `json:"pool"`
	Node    *int      `json:"node,omitempty"`
	Process int       `json:"process,omitempty"` // of the node, where it was one
	Client  *Client   `json:"client,omitempty"`
	Step    rdma.Step `json:"step,omitempty"` // the process ends when the client comes to it
	With    []Client  `json:"with,omitempty"` // the other clients of the process
}

// CrashNode makes a memory node one that is down for everybody, for good. Of a pool whose nodes were started on this machine
// it kills the node's process.
func CrashNode(addr string, node int) (*Crashed, error) {
	if p := started(addr); p != nil {
		return crashStarted(p, node)
	}
	p, err := stores.Open(addr)
	if err != nil {
		return nil, explain(err, addr)
	}
	defer p.Close()
	if n := p.Fabric.Nodes(); node < 0 || node >= n {
		return nil, workloads.Misuse("crash node %d: %s has nodes 0 to %d", node, p.Address, n-1)
	}
	if nodes, _ := nodesOf(p.Fabric); !nodes[node].Up {
		return nil, fmt.Errorf("crash node %d: it is down already (hint: 'farkv status %s' shows the nodes)", node,
			short(p.Address))
	}
	kills, ok := p.Fabric.(rdma.NodeKiller)
	if !ok {
		return nil, workloads.Misuse("crash node %d: the nodes of %s were not started here: end that one's process where it runs",
			node, p.Address)
	}
	if err := kills.KillNode(node); err != nil {
		return nil, explain(fmt.Errorf("crash node %d of %s: %w", node, p.Address, err), addr)
	}
	return &Crashed{Pool: p.Address, Node: &node}, nil
}

// CrashClient kills the process of a client: at once, or with a step when the client comes to it.
func CrashClient(addr string, id int, step rdma.Step) (*Crashed, error) {
	p, err := stores.Open(addr)
	if err != nil {
		return nil, explain(err, addr)
	}
	defer p.Close()
	if step != "" && !slices.Contains(p.Kind.Steps, step) {
		known := "it names none"
		for i, s := range p.Kind.Steps {
			if i == 0 {
				known = "there are: " + string(s)
			} else {
				known += "; " + string(s)
			}
		}
		return nil, workloads.Misuse("crash client %d at %q: no step of %s (%s)", id, step, p.Kind.Name, known)
	}
	c, err := findClient(p, id)
	if err != nil {
		return nil, fmt.Errorf("crash client %d: %w", id, err)
	}
	crash, err := crasher(p, step)
	if err != nil {
		return nil, err
	}
	done := &Crashed{Pool: p.Address, Step: step, Client: clientOf(c)}
	for _, other := range p.Fabric.Clients() {
		if other.PID == c.PID && other.ID != c.ID && other.Alive {
			done.With = append(done.With, *clientOf(other))
		}
	}
	switch err := crash(c, step); {
	case errors.Is(err, rdma.ErrClosed):
		return nil, fmt.Errorf("crash client %d: it is dead (hint: 'farkv recover %s' recovers it)", id, short(p.Address))
	case err != nil:
		return nil, explain(err, addr)
	}
	return done, nil
}

// crasher returns what kills the process of a client.
func crasher(p *stores.Pool, step rdma.Step) (func(c rdma.Client, step rdma.Step) error, error) {
	if breaks, ok := p.Fabric.(rdma.ClientCrasher); ok {
		return breaks.CrashClient, nil
	}
	switch {
	case !hereOnly(p.Address):
		return nil, workloads.Misuse("crash client: the clients of %s may be processes of any machine: kill that one's where it runs",
			p.Address)
	case step != "":
		return nil, workloads.Misuse("--at %s: clients of %s are told nothing by this machine: leave it out, and they are killed "+
			"at once", step, p.Address)
	}
	return func(c rdma.Client, _ rdma.Step) error { return killHere(p, c) }, nil
}

// hereOnly tells whether all memory nodes of an address are on the loopback, so that their clients are on this machine.
func hereOnly(addr string) bool {
	a, err := fabrics.Parse(addr)
	ok := err == nil && a.Nodes != nil
	for _, at := range a.Nodes {
		host, _, err := net.SplitHostPort(at)
		ip := net.ParseIP(host)
		ok = ok && err == nil && ip != nil && ip.IsLoopback()
	}
	return ok
}

// killHere kills the process of a client that runs on this machine. That the client is still listed as alive once there is a
// handle of the process shows that the number was not given to another one.
func killHere(p *stores.Pool, c rdma.Client) error {
	process, err := os.FindProcess(c.PID)
	if err != nil {
		return fmt.Errorf("process %d: %w", c.PID, rdma.ErrClosed)
	}
	defer process.Release()
	now, err := findClient(p, int(c.ID))
	if err != nil || now.Life != c.Life || !now.Alive || c.PID <= 1 {
		return fmt.Errorf("process %d: %w", c.PID, rdma.ErrClosed)
	}
	return process.Kill()
}

// short names a pool as its user would.
func short(addr string) string {
	if p := started(addr); p != nil {
		return p.Name
	}
	return strings.TrimPrefix(addr, "shm:")
}

func clientOf(c rdma.Client) *Client {
	return &Client{ID: int(c.ID), Name: c.Name, PID: c.PID, Alive: c.Alive, Fenced: !c.Alive && c.Held}
}

// findClient returns a client that is listed, dead or alive.
func findClient(p *stores.Pool, id int) (rdma.Client, error) {
	all, err := rdma.ListClients(p.Fabric)
	if err != nil {
		return rdma.Client{}, err
	}
	for _, c := range all {
		if int(c.ID) == id {
			return c, nil
		}
	}
	return rdma.Client{}, fmt.Errorf("%s has no such client (hint: 'farkv status %s' lists them)", p.Address, short(p.Address))
}

// Print implements Result.
func (c *Crashed) Print(w io.Writer) {
	switch {
	case c.Process > 0:
		fmt.Fprintf(w, "crashed node %d of %s: killed its process %d\n", *c.Node, c.Pool, c.Process)
	case c.Node != nil:
		fmt.Fprintf(w, "crashed node %d of %s: it is down for good\n", *c.Node, c.Pool)
	case c.Step != "":
		fmt.Fprintf(w, "client %d %q of %s kills its process %d when it comes to %q\n", c.Client.ID, c.Client.Name, c.Pool,
			c.Client.PID, c.Step)
	default:
		fmt.Fprintf(w, "crashed client %d %q of %s: killed its process %d\n", c.Client.ID, c.Client.Name, c.Pool, c.Client.PID)
	}
	if n := len(c.With); n > 0 {
		fmt.Fprintf(w, "and with it %s of that process\n", plural(n, "other client", "other clients"))
	}
}
