package ops

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

// Crashed is what was broken on purpose.
type Crashed struct {
	Pool   string   `json:"pool"`
	Node   *int     `json:"node,omitempty"`
	Client *Client  `json:"client,omitempty"`
	Step   string   `json:"step,omitempty"` // the process ends when the client comes to it
	With   []Client `json:"with,omitempty"` // the other clients of the process
}

// CrashNode makes a memory node one that is down for everybody, for good.
func CrashNode(addr string, node int) (*Crashed, error) {
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
	kills, ok := p.Fabric.(interface{ KillNode(node int) error })
	if !ok {
		return nil, workloads.Misuse("crash node %d: %s is no pool of this machine", node, p.Address)
	}
	if err := kills.KillNode(node); err != nil {
		return nil, explain(fmt.Errorf("crash node %d of %s: %w", node, p.Address, err), addr)
	}
	return &Crashed{Pool: p.Address, Node: &node}, nil
}

// CrashClient kills the process of a client: at once, or with a step when the client comes to it.
func CrashClient(addr string, id int, step string) (*Crashed, error) {
	p, err := stores.Open(addr)
	if err != nil {
		return nil, explain(err, addr)
	}
	defer p.Close()
	if step != "" && !slices.Contains(p.Kind.Steps, step) {
		known := "it names none"
		if len(p.Kind.Steps) > 0 {
			known = "there are: " + strings.Join(p.Kind.Steps, "; ")
		}
		return nil, workloads.Misuse("crash client %d at %q: no step of %s (%s)", id, step, p.Kind.Name, known)
	}
	c, err := findClient(p, id)
	if err != nil {
		return nil, fmt.Errorf("crash client %d: %w", id, err)
	}
	breaks, ok := p.Fabric.(interface {
		CrashClient(c rdma.Client, step string) error
	})
	if !ok {
		return nil, workloads.Misuse("crash client %d: only clients of shm: pools are processes of this machine", id)
	}
	done := &Crashed{Pool: p.Address, Step: step, Client: clientOf(c)}
	for _, other := range p.Fabric.Clients() {
		if other.PID == c.PID && other.ID != c.ID && other.Alive {
			done.With = append(done.With, *clientOf(other))
		}
	}
	switch err := breaks.CrashClient(c, step); {
	case errors.Is(err, rdma.ErrClosed):
		return nil, fmt.Errorf("crash client %d: it is dead (hint: 'farkv recover %s' recovers it)", id, short(p.Address))
	case err != nil:
		return nil, explain(err, addr)
	}
	return done, nil
}

func short(addr string) string { return strings.TrimPrefix(addr, "shm:") }

func clientOf(c rdma.Client) *Client {
	return &Client{ID: int(c.ID), Name: c.Name, PID: c.PID, Alive: c.Alive, Fenced: !c.Alive && c.Held}
}

// findClient returns a client that is listed, dead or alive.
func findClient(p *stores.Pool, id int) (rdma.Client, error) {
	for _, c := range p.Fabric.Clients() {
		if int(c.ID) == id {
			return c, nil
		}
	}
	return rdma.Client{}, fmt.Errorf("%s has no such client (hint: 'farkv status %s' lists them)", p.Address, short(p.Address))
}

// Print implements Result.
func (c *Crashed) Print(w io.Writer) {
	switch {
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
