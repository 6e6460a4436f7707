package chaos

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
)

// Crashed is what was broken on purpose.
type Crashed struct {
	Pool    string       `json:"pool"`
	Node    *int         `json:"node,omitempty"`
	Process int          `json:"process,omitempty"` // of the node, where it was one
	Client  *ops.Client  `json:"client,omitempty"`
	Step    rdma.Step    `json:"step,omitempty"` // the process ends when the client comes to it
	With    []ops.Client `json:"with,omitempty"` // the other clients of the process
}

// CrashNode takes a memory node down for all programs, for good. When the pool's nodes were started
// on this machine, it kills the node's process. Unless forced it refuses when data, or the pool,
// would be lost. It does not check that of a pool that cannot be opened.
func CrashNode(addr string, node int, force bool) (*Crashed, error) {
	here := ops.StartedHere(addr)
	at, err := ops.Resolve(addr)
	if err != nil {
		return nil, err
	}
	p, err := stores.Open(at)
	if err != nil {
		if here != nil {
			return crashStarted(here, node)
		}
		return nil, ops.Explain(err, addr)
	}
	defer p.Close()
	if err := mayBreak(p); err != nil {
		return nil, err
	}
	if nodes, _ := ops.NodesOf(p.Fabric); !force && node >= 0 && node < len(nodes) && nodes[node].Up {
		if err := loses(p, &Break{Kind: BreakNode, Target: Target{Nodes: []int{node}}}); err != nil {
			return nil, err
		}
	}
	var done *Crashed
	if here != nil {
		done, err = crashStarted(here, node)
	} else if done, err = crashNode(p, node); err != nil {
		err = ops.Explain(err, addr)
	}
	if err != nil {
		return nil, err
	}
	if !force { // else there may be no pool any more that keeps it
		appendEvent(p, (&Broken{At: time.Now(), Nodes: []int{node}, Text: firstLine(done)}).event(p))
	}
	return done, nil
}

// crashNode kills a node that is no process, or refuses.
func crashNode(p *stores.Pool, node int) (*Crashed, error) {
	if n := p.Fabric.Nodes(); node < 0 || node >= n {
		return nil, workloads.Usagef("crash node %d: %s has nodes 0 to %d", node, p.Address, n-1)
	}
	if nodes, _ := ops.NodesOf(p.Fabric); !nodes[node].Up {
		return nil, fmt.Errorf("crash node %d: it is down already (hint: 'farkv status %s' shows the nodes)", node,
			ops.ShortName(p.Address))
	}
	kills, ok := p.Fabric.(rdma.NodeKiller)
	if !ok {
		return nil, workloads.Usagef("crash node %d: the nodes of %s were not started here: end that one's process "+
			"where it runs", node, p.Address)
	}
	if err := kills.KillNode(node); err != nil {
		return nil, fmt.Errorf("crash node %d of %s: %w", node, p.Address, err)
	}
	return &Crashed{Pool: p.Address, Node: &node}, nil
}

// loses returns why a break costs data, or the pool; nil: it does not, both are lost already, or it
// cannot be told.
func loses(p *stores.Pool, w *Break) error {
	s := ops.NodeStates(p)
	before := s.Margin
	for _, n := range dying(s, w) {
		s.Nodes[n].Up = false
		if s.Nodes[n].Served != nil {
			s.Nodes[n].Reachable = false
		}
	}
	switch after := s.ComputeMargin(p); {
	case before.Ended() || before.Lost():
		return nil
	case after.Ended():
		return fmt.Errorf("%v: the pool would end with it: %d of its %s would live, and %d must (hint: --force)",
			w, after.Voters.Live, format.Plural(after.Voters.Nodes, "voter", "voters"), after.Voters.Needed)
	case after.Lost():
		return fmt.Errorf("%v: data would be lost with it: too few of its copies would be left (hint: --force)", w)
	}
	return nil
}

// dying returns the nodes that may be dead for the pool when w is over: those that are silent for
// as long as it takes to be expelled, and those that no majority of the voters grants a lease.
func dying(s *ops.State, w *Break) (nodes []int) {
	switch {
	case w.Kind == BreakNode, w.Kind == BreakStop, w.Kind == BreakCut && (len(w.Nodes) == 1 || w.Clients):
		return w.Nodes
	case w.Kind != BreakCut:
		return nil
	}
	all := append([]ops.Served{}, s.Witnesses...)
	cut := 0 // of them, the voters
	for n, node := range s.Nodes {
		if node.Served == nil {
			return w.Nodes
		}
		all = append(all, *node.Served)
		if node.Voter && slices.Contains(w.Nodes, n) {
			cut++
		}
	}
	v := ops.VotersOf(all)
	if v == nil {
		return w.Nodes
	}
	for _, n := range w.Nodes {
		others := cut
		if s.Nodes[n].Voter {
			others--
		}
		if v.Live-others < v.Needed {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// CrashClient kills the process of a client: at once, or with a step when the client comes to it.
func CrashClient(addr string, id int, step rdma.Step) (*Crashed, error) {
	p, err := stores.Open(addr)
	if err != nil {
		return nil, ops.Explain(err, addr)
	}
	defer p.Close()
	if err := mayBreak(p); err != nil {
		return nil, err
	}
	if step != "" && !slices.Contains(p.Kind.Steps, step) {
		return nil, workloads.Usagef("crash client %d at %q: no step of %s (there are: %s)", id, step, p.Kind.Name,
			strings.Join(format.Words(p.Kind.Steps), "; "))
	}
	c, err := ops.FindClient(p, id)
	if err != nil {
		return nil, fmt.Errorf("crash client %d: %w", id, err)
	}
	done, err := crashClient(p, c, step)
	if err != nil {
		return nil, ops.Explain(err, addr)
	}
	appendEvent(p, (&Broken{At: time.Now(), Client: done.Client, Text: firstLine(done)}).event(p))
	return done, nil
}

func crashClient(p *stores.Pool, c rdma.Client, step rdma.Step) (*Crashed, error) {
	crash, err := crasher(p, step)
	if err != nil {
		return nil, err
	}
	done := &Crashed{Pool: p.Address, Step: step, Client: ops.ClientOf(c)}
	for _, other := range p.Fabric.Clients() {
		if other.PID == c.PID && other.ID != c.ID && other.Alive {
			done.With = append(done.With, *ops.ClientOf(other))
		}
	}
	if err := crash(c, step); errors.Is(err, rdma.ErrClosed) {
		return nil, fmt.Errorf("crash client %d: it is dead (hint: 'farkv recover %s' recovers it)", c.ID,
			ops.ShortName(p.Address))
	} else if err != nil {
		return nil, err
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
		return nil, workloads.Usagef("crash client: the clients of %s may be processes of any machine: kill that "+
			"one's where it runs", p.Address)
	case step != "":
		return nil, workloads.Usagef("--at %s: clients of %s are told nothing by this machine: leave it out, and "+
			"they are killed at once", step, p.Address)
	}
	return func(c rdma.Client, _ rdma.Step) error { return killHere(p, c) }, nil
}

// hereOnly reports whether all memory nodes of an address are on the loopback, so that their
// clients are on this machine.
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

// killHere kills the process of a client that runs on this machine.
func killHere(p *stores.Pool, c rdma.Client) error {
	process, err := findHere(p, c)
	if err != nil {
		return err
	}
	defer process.Release()
	return process.Kill()
}

// findHere returns the process of a client that runs on this machine. That the client is still
// listed as alive once there is a handle of the process shows that the number was not given to
// another one. The error wraps rdma.ErrClosed when it is gone.
func findHere(p *stores.Pool, c rdma.Client) (*os.Process, error) {
	process, err := os.FindProcess(c.PID)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", c.PID, rdma.ErrClosed)
	}
	now, err := ops.FindClient(p, int(c.ID))
	if err != nil || now.Life != c.Life || !now.Alive || c.PID <= 1 {
		return nil, errors.Join(fmt.Errorf("process %d: %w", c.PID, rdma.ErrClosed), process.Release())
	}
	return process, nil
}

// Print implements Result.
func (c *Crashed) Print(w io.Writer) {
	switch {
	case c.Process > 0:
		fmt.Fprintf(w, "crashed node %d of %s: killed its process %d\n", *c.Node, c.Pool, c.Process)
	case c.Node != nil:
		fmt.Fprintf(w, "crashed node %d of %s: it is down for good\n", *c.Node, c.Pool)
	case c.Step != "":
		fmt.Fprintf(w, "client %d %q of %s kills its process %d when it comes to %q\n", c.Client.ID,
			c.Client.Name, c.Pool, c.Client.PID, c.Step)
	default:
		fmt.Fprintf(w, "crashed client %d %q of %s: killed its process %d\n", c.Client.ID, c.Client.Name, c.Pool,
			c.Client.PID)
	}
	if n := len(c.With); n > 0 {
		fmt.Fprintf(w, "and with it %s of that process\n", format.Plural(n, "other client", "other clients"))
	}
}

// masterly marks the client that is the master.
func masterly(is bool) string {
	if is {
		return "the master, "
	}
	return ""
}

// firstLine is the first of what a result prints.
func firstLine(r ops.Result) string {
	var out strings.Builder
	r.Print(&out)
	line, _, _ := strings.Cut(out.String(), "\n")
	return line
}

// crashStarted kills the process of a node.
func crashStarted(p *local.Pool, node int) (*Crashed, error) {
	if n := len(p.Nodes); node < 0 || node >= n {
		return nil, workloads.Usagef("crash node %d: %s has nodes 0 to %d", node, p.Name, n-1)
	}
	killed, err := p.Kill(node)
	switch {
	case err != nil:
		return nil, fmt.Errorf("crash node %d of %s: %w", node, p.Name, err)
	case !killed:
		return nil, fmt.Errorf("crash node %d: its process is gone already (hint: 'farkv status %s' shows the nodes)",
			node, p.Name)
	}
	return &Crashed{Pool: p.Name, Node: &node, Process: p.Nodes[node].PID}, nil
}
