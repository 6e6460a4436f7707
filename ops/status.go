package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
)

// State is the state of a pool.
type State struct {
	Pool   string          `json:"pool"`
	Name   string          `json:"name,omitempty"`   // under which 'farkv up' started its nodes on this machine
	Folder string          `json:"folder,omitempty"` // with the logs and pid files of these
	Store  string          `json:"store"`
	Format uint32          `json:"format"` // version of the store's format
	Build  *Build          `json:"build"`  // of the program that looked
	Params json.RawMessage `json:"params"` // the store's own
	// Options are the settings of the store, and Can is what its pools can do.
	Options []stores.Setting `json:"options"`
	Can     []string         `json:"can"`
	Nodes   []Node           `json:"nodes"`
	// Limits are those of keys and of values, if the store has such limits.
	Limits *stores.Limits `json:"limits,omitempty"`
	// Witnesses are voters that hold no data.
	Witnesses []Served `json:"witnesses,omitempty"`
	View      View     `json:"view"`
	// Configuration describes the configuration of a store that has one.
	Configuration string   `json:"configuration,omitempty"`
	Margin        *Margin  `json:"margin,omitempty"` // how many more nodes may die; not known where it is left out
	Master        *Master  `json:"master,omitempty"` // none, or not known where it is left out
	Fill          []Fill   `json:"fill"`
	Memory        []Use    `json:"memory"`
	Problem       string   `json:"problem,omitempty"` // why something is missing in Memory or Clients
	Places        int      `json:"places"`            // clients that the pool has room for; 0 where that is not known
	Clients       []Client `json:"clients"`

	doc string
}

// Node is one memory node.
type Node struct {
	*Served          // of one that is a process
	Bytes     uint64 `json:"bytes"`
	Telemetry uint64 `json:"telemetry,omitempty"` // bytes more, of figures of processes and of events
	Up        bool   `json:"up"`
	Gone      bool   `json:"gone,omitempty"`       // the view has it no more
	Replaces  *int   `json:"stands_for,omitempty"` // the node that it replaced
}

// View is the current view of a pool.
type View struct {
	Epoch uint64 `json:"epoch"`
	Busy  bool   `json:"busy"` // a master is mending the pool, or died in the midst of that

	majority bool // the store's clients go on meanwhile
}

// Master is the client that replaces dead nodes and recovers dead clients.
type Master struct {
	Client int     `json:"client"`
	Name   string  `json:"name"`
	PID    int     `json:"pid"`
	Left   float64 `json:"left_seconds"` // of its tenure, unless it prolongs it
}

// MasterOf returns the master. nil: there is none, or it is not known.
func MasterOf(f rdma.Fabric) *Master {
	knows, ok := f.(rdma.MasterReporter)
	if !ok {
		return nil
	}
	r, left, ok := knows.Master()
	if !ok {
		return nil
	}
	m := &Master{Client: int(r.Owner), Left: left.Seconds()}
	for _, c := range f.Clients() {
		if c.ID == r.Owner {
			m.Name, m.PID = c.Name, c.PID
		}
	}
	return m
}

func (m *Master) String() string {
	return fmt.Sprintf("client %d %q of process %d", m.Client, m.Name, m.PID)
}

// Use is a purpose that memory serves; Bytes count all replicas.
type Use struct {
	Purpose string `json:"purpose"`
	Count   uint64 `json:"count"`
	Bytes   uint64 `json:"bytes"`
}

// Client is an identity in use.
type Client struct {
	ID    int    `json:"id"`
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	Alive bool   `json:"alive"` // false: it died without closing, and what it owns waits for recovery
	// Fenced: the client was fenced off, and its process is still there. It keeps the identity
	// until the process ends, even when it is recovered already.
	Fenced bool `json:"fenced,omitempty"`
}

// Status returns the state of a pool. Clients may work meanwhile. For a pool that cannot be opened
// it returns the error together with what its nodes report, if any does.
func Status(addr string) (*State, error) {
	p, err := stores.Open(addr)
	if err != nil {
		return Unreachable(addr, err), Explain(err, addr)
	}
	defer p.Close()
	return stateOf(p)
}

func stateOf(p *stores.Pool) (*State, error) {
	s := Glance(p)
	if err := s.AddMemory(p); err != nil {
		return nil, ExplainAt(fmt.Errorf("status of %s: %w", p.Address, err), p.Address)
	}
	return s, nil
}

// Glance returns the state of a pool without what only its memory has.
func Glance(p *stores.Pool) *State {
	s := &State{
		Pool: p.Address, Store: p.Kind.Name, Format: p.Header.Version, Params: withoutSecret(p.Header.Params),
		doc:     p.Kind.Doc,
		Options: p.Kind.Settings(p.Header), Can: p.Kind.Can(), Memory: []Use{}, Fill: []Fill{},
		Build: ThisBuild("farkv"),
	}
	s.Limits = limitsOf(p)
	var unknown error
	if s.Clients, unknown = clientsOf(p.Fabric); unknown != nil {
		s.Problem = unknown.Error()
	}
	s.Nodes, s.View = NodesOf(p.Fabric)
	s.View.majority = p.Kind.Majority
	s.nameStarted()
	s.addServed(p.Fabric)
	if p.Kind.Configuration != nil {
		if s.Configuration, unknown = p.Kind.Configuration(p.Fabric); unknown != nil {
			s.Configuration = "not known: " + unknown.Error()
		}
	}
	s.Margin = s.ComputeMargin(p)
	s.Master = MasterOf(p.Fabric)
	if g, ok := p.Fabric.(rdma.Geometer); ok {
		s.Places = g.Geometry().Clients
	}
	return s
}

// AddMemory adds how full the pool is, and what its memory is used for.
func (s *State) AddMemory(p *stores.Pool) error {
	if p.Kind.Fill != nil {
		s.addFill(p)
	}
	uses, err := p.Kind.Usage(p.Fabric)
	switch {
	case errors.Is(err, rdma.ErrNodeDown): // of all times now it has to tell what there is to tell
		s.Problem = err.Error()
	case err != nil:
		return err
	}
	for _, u := range uses {
		s.Memory = append(s.Memory, Use{u.Name, u.Count, u.Bytes})
	}
	return nil
}

func telemetryOf(f rdma.Fabric) uint64 {
	if g, ok := f.(rdma.Geometer); ok {
		return g.Geometry().Telemetry
	}
	return 0
}

// NodesOf returns the memory nodes of a pool's view, without what their processes report, and the
// view.
func NodesOf(f rdma.Fabric) (nodes []Node, view View) {
	monitor, _ := f.(rdma.NodeMonitor)
	v := f.View()
	for n, m := range v.Members {
		is := Node{Bytes: f.Size(), Telemetry: telemetryOf(f), Up: !m.Gone && (monitor == nil || !monitor.NodeDown(n)),
			Gone: m.Gone}
		if m.Replaces > 0 {
			place := int(m.Replaces) - 1
			is.Replaces = &place
		}
		nodes = append(nodes, is)
	}
	return nodes, View{Epoch: v.Epoch, Busy: v.Busy}
}

// telemetryText returns a text on the memory for telemetry, given in bytes a node.
func telemetryText(bytes uint64) string {
	if bytes == 0 {
		return "none: the pool was made without, or by an older farkv"
	}
	return format.Size(bytes) + " more on each node"
}

func clientsOf(f rdma.Fabric) ([]Client, error) {
	clients, err := rdma.ListClients(f)
	all := []Client{}
	for _, c := range clients {
		all = append(all, *ClientOf(c))
	}
	return all, err
}

// living returns the clients that are alive and no servers.
func living(all []Client) []Client {
	return slices.DeleteFunc(slices.Clone(all), func(c Client) bool { return !c.Alive || c.Serves() })
}

// Serves reports whether the client is a live server, or a task of one. Such a client does not keep
// a pool from being removed or checked.
func (c *Client) Serves() bool { return c.Alive && stores.OfServer(c.Name) }

// deadOf counts the clients that are not alive.
func deadOf(all []Client) int {
	return len(slices.DeleteFunc(slices.Clone(all), func(c Client) bool { return c.Alive }))
}

// CountClients counts the live clients of a pool, without servers, and the dead ones.
func CountClients(f rdma.Fabric) (live, dead int, err error) {
	all, err := clientsOf(f)
	return len(living(all)), deadOf(all), err
}

// crowd returns a short text that names some of the clients.
func crowd(all []Client) string {
	const most = 3
	var names []string
	for _, c := range all[:min(most, len(all))] {
		names = append(names, fmt.Sprintf("%d %q of process %d", c.ID, c.Name, c.PID))
	}
	if len(all) > most {
		names = append(names, fmt.Sprintf("%d more", len(all)-most))
	}
	return format.Plural(len(all), "live client", "live clients") + ": " + strings.Join(names, ", ")
}

// health returns a text on which nodes serve.
func (s *State) health() string {
	var not []string
	for i, n := range s.Nodes {
		switch {
		case n.Gone:
			not = append(not, fmt.Sprintf("node %d is gone", i))
		case !n.Up:
			not = append(not, fmt.Sprintf("node %d is DOWN", i))
		}
	}
	for i, n := range s.Nodes {
		if n.Replaces != nil && n.Up {
			not = append(not, fmt.Sprintf("node %d stands for node %d", i, *n.Replaces))
		}
	}
	if len(not) == 0 {
		return "all up"
	}
	return strings.Join(not, ", ")
}

func (v View) String() string {
	switch {
	case v.Busy && v.majority:
		return fmt.Sprintf("epoch %d, being swept", v.Epoch)
	case v.Busy:
		return fmt.Sprintf("epoch %d, being mended: clients only read", v.Epoch)
	}
	return fmt.Sprintf("epoch %d", v.Epoch)
}

func (s *State) master() string {
	if s.Master == nil {
		return "none"
	}
	left := time.Duration(s.Master.Left * float64(time.Second))
	return fmt.Sprintf("%v, for another %v", s.Master, left.Round(time.Millisecond))
}

// Print implements Result.
func (s *State) Print(w io.Writer) {
	if s.Store == "" {
		fmt.Fprintf(w, "%s cannot be opened\n", s.Pool)
		if s.Folder != "" {
			fmt.Fprintf(w, "its nodes' logs are in %s\n", s.Folder)
		}
		s.printNodes(w)
		if s.Margin != nil {
			fmt.Fprintf(w, "%s\n", s.Margin)
		}
		return
	}
	total := uint64(0)
	for _, n := range s.Nodes {
		total += n.Bytes
	}
	clients := fmt.Sprintf("%s live, %s dead", format.Count(len(living(s.Clients))), format.Count(deadOf(s.Clients)))
	if s.Places > 0 {
		clients += fmt.Sprintf(", places for %s", format.Count(s.Places))
	}
	rows := [][]string{{"pool", s.Pool}}
	if s.Name != "" {
		rows = append(rows, []string{"name", s.Name}, []string{"logs", s.Folder})
	}
	rows = append(rows, []string{"store", s.Store + ": " + s.doc}, []string{"can", strings.Join(s.Can, "; ")})
	rows = append(rows, limitRows(s.Limits)...)
	rows = append(rows, [][]string{
		{"nodes", fmt.Sprintf("%d of %s, %s in all; %s", len(s.Nodes), format.Size(s.Nodes[0].Bytes),
			format.Size(total), s.health())},
		{"telemetry", telemetryText(s.Nodes[0].Telemetry)},
		{"version", fmt.Sprintf("format %d; this is %v", s.Format, s.Build)},
		{"margin", s.Margin.String()},
		{"view", s.View.String()},
	}...)
	if s.Configuration != "" {
		rows = append(rows, []string{"configuration", s.Configuration})
	}
	table.Print(w, append(rows, []string{"master", s.master()}, []string{"clients", clients}), 1)
	if a, err := fabrics.Parse(s.Pool); err == nil && !a.Remote() {
		fmt.Fprintln(w, "its memory survives the processes that use it (shared memory), and ends with the next boot")
	}
	s.printNodes(w)
	s.printPMem(w)
	if rows := parameters(s.Params); len(rows) > 0 {
		fmt.Fprintln(w)
		table.Print(w, append([][]string{{"parameter", "value"}}, rows...))
	}
	s.printDetails(w)
}

func (s *State) printDetails(w io.Writer) {
	rows := [][]string{{"memory", "number", "bytes of all replicas"}}
	for _, u := range s.Memory {
		rows = append(rows, []string{u.Purpose, format.Count(u.Count), format.Size(u.Bytes)})
	}
	s.printFill(w)
	fmt.Fprintln(w)
	if len(s.Memory) > 0 {
		table.Print(w, rows)
	}
	if slices.ContainsFunc(s.Nodes, func(n Node) bool { return !n.Up }) {
		fmt.Fprintln(w, "what only nodes know that are down is left out")
	}
	switch {
	case s.Problem != "" && s.Margin.Lost(): // the margin has the hint
		fmt.Fprintf(w, "not all is known: %s\n", s.Problem)
	case s.Problem != "":
		fmt.Fprintf(w, "not all is known: %s (hint: 'farkv recover %s' mends the pool)\n", s.Problem, ShortName(s.Pool))
	}
	clients := slices.DeleteFunc(slices.Clone(s.Clients), func(c Client) bool { return c.Serves() })
	if len(clients) == 0 {
		return
	}
	const most = 20
	rows = [][]string{{"client", "process", "state", "name"}}
	for _, c := range clients[:min(most, len(clients))] {
		state := "live"
		switch {
		case c.Fenced:
			state = "fenced off, still attached"
		case !c.Alive:
			state = "dead, waits for recovery"
		}
		rows = append(rows, []string{fmt.Sprint(c.ID), fmt.Sprint(c.PID), state, c.Name})
	}
	fmt.Fprintln(w)
	table.Print(w, rows, 2, 3)
	if n := len(clients) - most; n > 0 {
		fmt.Fprintf(w, "and %s more\n", format.Count(n))
	}
}

// withoutSecret returns parameters without the secret that some stores have, so that others cannot
// forge what lies in their memory.
func withoutSecret(text json.RawMessage) json.RawMessage {
	var all map[string]json.RawMessage
	if json.Unmarshal(text, &all) != nil || all["secret"] == nil {
		return text
	}
	delete(all, "secret")
	rest, err := json.Marshal(all)
	if err != nil {
		panic(fmt.Sprintf("write parameters that were read: %v", err))
	}
	return rest
}

// parameters returns a store's parameters, a JSON object, as rows. For any other text it returns
// none.
func parameters(text json.RawMessage) (rows [][]string) {
	var all map[string]any
	if json.Unmarshal(text, &all) != nil {
		return nil
	}
	return parametersOf("", all)
}

// parametersOf returns the rows of an inner object. Each name begins with prefix.
func parametersOf(prefix string, all map[string]any) (rows [][]string) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		if within, ok := v.(map[string]any); ok {
			rows = append(rows, parametersOf(prefix+name+" ", within)...)
			continue
		}
		if n, ok := v.(float64); ok {
			switch {
			case name == "timeout" || name == "lease": // as every store names what is in nanoseconds
				v = time.Duration(n)
			case n == math.Trunc(n):
				v = format.Count(int64(n))
			}
		}
		rows = append(rows, []string{strings.ReplaceAll(prefix+name, "_", " "), fmt.Sprint(v)})
	}
	return rows
}

// ClientOf returns a client of a fabric as a State has it.
func ClientOf(c rdma.Client) *Client {
	return &Client{ID: int(c.ID), Name: c.Name, PID: c.PID, Alive: c.Alive, Fenced: !c.Alive && c.Held}
}

// FindClient returns a client that is listed, dead or alive.
func FindClient(p *stores.Pool, id int) (rdma.Client, error) {
	all, err := rdma.ListClients(p.Fabric)
	if err != nil {
		return rdma.Client{}, err
	}
	for _, c := range all {
		if int(c.ID) == id {
			return c, nil
		}
	}
	return rdma.Client{}, fmt.Errorf("%s has no such client (hint: 'farkv status %s' lists them)", p.Address,
		ShortName(p.Address))
}
