package ops

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
)

// Served is the state of a memory node that is a process.
type Served struct {
	Address     string  `json:"address"`
	Reachable   bool    `json:"reachable"`
	Problem     string  `json:"problem,omitempty"`     // why it is not
	Incarnation string  `json:"incarnation,omitempty"` // each start of the process has another
	Lease       float64 `json:"lease_seconds"`         // for which it may execute verbs, unless it prolongs that
	Epoch       uint64  `json:"epoch"`                 // of the view, as the node was told
	Expelled    bool    `json:"expelled,omitempty"`    // by the others
	Connected   int     `json:"connected"`             // processes of clients and readers, without this one
	InPool      bool    `json:"in_pool"`
	Voter       bool    `json:"voice,omitempty"`  // in the pool's decisions: see Margin
	Offers      uint64  `json:"offers"`           // bytes, of which the pool may use fewer
	Commit      string  `json:"commit,omitempty"` // that its program was built from
	// Refused connections: because authentication failed, for lack of room, and for other reasons.
	AuthFailures uint64 `json:"auth_failures"`
	RefusedRoom  uint64 `json:"refused_room"`
	RefusedOther uint64 `json:"refused_other"`
	// Survives is what its memory survives, and SurvivesBy is by which means; "": nothing.
	Survives   string `json:"survives,omitempty"`
	SurvivesBy string `json:"survives_by,omitempty"`
	// Server is the server of the pool's store beside the node.
	Server *fabrics.Server `json:"server,omitempty"`
	// PMem has the counters of its machine's persistent memory, or why they are not known.
	PMem      *telemetry.PMem `json:"pmem,omitempty"`
	Process   int             `json:"process,omitempty"`        // that 'farkv up' started on this machine
	Broken    string          `json:"broken,omitempty"`         // on purpose: how
	BrokenFor float64         `json:"broken_seconds,omitempty"` // what is left of that

	Counts *telemetry.NodeCounts `json:"-"` // of verbs that the node executed; nil: it did not answer
}

// inspectTime bounds the time for asking all nodes of a pool.
const inspectTime = 3 * time.Second

// ServedBy returns the state of the memory nodes of an address that are processes. f is as in
// Inspect.
func ServedBy(addr string, f rdma.Fabric) ([]Served, error) {
	ctx, cancel := context.WithTimeout(context.Background(), inspectTime)
	defer cancel()
	all, err := Inspect(ctx, addr, f)
	if len(all) == 0 {
		return nil, err
	}
	if p := StartedHere(addr); p != nil {
		processesOf(p, all)
	}
	return all, nil
}

func processesOf(p *local.Pool, all []Served) {
	for i := range all {
		for n, node := range p.Nodes {
			if node.Address == all[i].Address && p.Alive(n) {
				all[i].Process = node.PID
			}
		}
	}
}

// Unreachable returns the state of a pool that cannot be opened, as its nodes report it.
func Unreachable(addr string, why error) *State {
	all, err := ServedBy(addr, nil)
	if err != nil || len(all) == 0 {
		return nil
	}
	s := &State{Pool: addr, Nodes: []Node{}, Memory: []Use{}, Fill: []Fill{}, Clients: []Client{}, Problem: why.Error(),
		Build: ThisBuild("farkv")}
	s.nameStarted()
	for _, one := range all {
		s.Nodes = append(s.Nodes, Node{Bytes: one.Offers, Up: one.Reachable && !one.Expelled, Served: &one})
	}
	s.Margin = s.ComputeMargin(nil)
	return s
}

// nameStarted sets the name of a pool with nodes that were started on this machine.
func (s *State) nameStarted() {
	if here := StartedHere(s.Pool); here != nil {
		s.Name, s.Folder = here.Name, here.Folder()
	}
}

// addServed adds what the processes of memory nodes report. When they cannot be asked, the state
// stays as it is.
func (s *State) addServed(f rdma.Fabric) {
	all, err := ServedBy(s.Pool, f)
	if err != nil || len(all) < len(s.Nodes) {
		return
	}
	for i := range s.Nodes {
		s.Nodes[i].Served = &all[i]
	}
	s.Witnesses = all[len(s.Nodes):]
}

// serves reports whether a server of the pool's store runs beside the node.
func (n *Node) serves() bool { return n.Served != nil && n.Server != nil && n.Server.Problem == "" }

// Unserved returns texts on the nodes that answer but have no working server. It is empty for
// stores without servers.
func (s *State) Unserved() (all []string) {
	if k, err := stores.Lookup(s.Store); err != nil || k.Serve == nil {
		return nil
	}
	for i, n := range s.Nodes {
		switch {
		case n.Gone || !n.Up || n.Served == nil || n.serves():
		case n.Server == nil:
			all = append(all, fmt.Sprintf("node %d does not serve %s yet", i, s.Store))
		default:
			all = append(all, fmt.Sprintf("node %d does not serve %s: %s", i, s.Store, n.Server.Problem))
		}
	}
	return all
}

// printServers prints which nodes serve the pool's store, if the store has servers.
func (s *State) printServers(w io.Writer) {
	for _, why := range s.Unserved() {
		fmt.Fprintln(w, why)
	}
	var serve []string
	rows := [][]string{{"server"}}
	for i, n := range s.Nodes {
		if n.serves() {
			serve = append(serve, fmt.Sprint(i))
			row := []string{fmt.Sprint(i)}
			for _, c := range n.Server.Counts {
				if len(rows) == 1 {
					rows[0] = append(rows[0], c.Name)
				}
				row = append(row, format.Count(c.Count))
			}
			rows = append(rows, row)
		}
	}
	if len(serve) > 0 {
		nodes := format.Plural(len(serve), "node", "nodes")
		fmt.Fprintf(w, "%s is served by %s: %s\n", s.Store, nodes, strings.Join(serve, ", "))
	}
	if len(rows[0]) > 1 {
		fmt.Fprintln(w)
		table.Print(w, rows)
		fmt.Fprintln(w)
	}
}

// printNodes prints the node processes.
func (s *State) printNodes(w io.Writer) {
	rows := [][]string{{"node", "address", "state", "memory", "lease", "epoch", "processes", "started here",
		"incarnation"}}
	silent := ""
	for i, n := range s.Nodes {
		if n.Served == nil {
			return
		}
		rows = append(rows, n.row(fmt.Sprint(i), n.state()))
		if n.Problem != "" && !n.Gone {
			silent += fmt.Sprintf("node %d does not answer: %s\n", i, strings.Join(strings.Fields(n.Problem), " "))
		}
	}
	for _, one := range s.Witnesses {
		n := Node{Served: &one, Up: true}
		rows = append(rows, one.row("witness", n.state()))
	}
	fmt.Fprintln(w)
	table.Print(w, rows, 1, 2)
	fmt.Fprint(w, silent)
	s.printServers(w)
	s.printSurvival(w)
	for i, n := range s.Nodes {
		if n.Broken != "" {
			left := time.Duration(n.BrokenFor * float64(time.Second)).Round(10 * time.Millisecond)
			fmt.Fprintf(w, "node %d is broken on purpose: %s, for another %v\n", i, n.Broken, left)
		}
		n.printRefused(w, fmt.Sprint("node ", i))
	}
	for _, one := range s.Witnesses {
		one.printRefused(w, "witness "+one.Address)
	}
}

// printSurvival prints what the nodes' memory survives: in one line when it is the same for all.
func (s *State) printSurvival(w io.Writer) {
	says := func(one *Served) string {
		if one.Survives == "" {
			return "nothing: a node that ends forgets what it held"
		}
		return fmt.Sprintf("%s (%s)", one.Survives, one.SurvivesBy)
	}
	var lines []string
	add := func(name string, one *Served) {
		if one.Reachable {
			lines = append(lines, fmt.Sprintf("%s survives %s", name, says(one)))
		}
	}
	for i, n := range s.Nodes {
		add(fmt.Sprint("node ", i), n.Served)
	}
	for _, one := range s.Witnesses {
		add("witness "+one.Address, &one)
	}
	same := func(line string) bool {
		return strings.SplitN(line, " survives ", 2)[1] == strings.SplitN(lines[0], " survives ", 2)[1]
	}
	if len(lines) > 0 && !slices.ContainsFunc(lines, func(l string) bool { return !same(l) }) {
		lines = []string{"each node survives " + strings.SplitN(lines[0], " survives ", 2)[1]}
	}
	for _, l := range lines {
		fmt.Fprintln(w, l)
	}
}

// printRefused prints how many connections a node has refused since it began, because
// authentication failed or for lack of room.
func (s *Served) printRefused(w io.Writer, name string) {
	var parts []string
	if n := int(s.AuthFailures); n > 0 {
		parts = append(parts, format.Plural(n, "connection", "connections")+" failed authentication")
	}
	if n := int(s.RefusedRoom); n > 0 {
		parts = append(parts, format.Plural(n, "connection", "connections")+" found no room")
	}
	if len(parts) > 0 {
		fmt.Fprintf(w, "%s: %s\n", name, strings.Join(parts, ", "))
	}
}

func (s *Served) row(name, state string) []string {
	row := []string{name, s.Address, state, "", "", "", "", "", s.Incarnation}
	if s.Reachable {
		copy(row[3:], []string{format.Size(s.Offers), "", format.Count(s.Epoch), format.Count(s.Connected)})
	}
	if s.InPool {
		row[4] = time.Duration(s.Lease * float64(time.Second)).Round(time.Millisecond).String()
	}
	if s.Process > 0 {
		row[7] = fmt.Sprint(s.Process)
	}
	return row
}

// state returns a node's state in one or two words.
func (n *Node) state() string {
	switch {
	case n.Gone:
		return "gone"
	case n.Expelled:
		return "expelled"
	case !n.Reachable:
		return "no answer"
	case !n.InPool:
		return "in no pool"
	case !n.Up:
		return "DOWN"
	case n.Replaces != nil:
		return fmt.Sprintf("up, for node %d", *n.Replaces)
	}
	return "up"
}
