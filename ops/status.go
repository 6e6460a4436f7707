package ops

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
)

// State is what can be told of a pool at a glance.
type State struct {
	Pool    string          `json:"pool"`
	Store   string          `json:"store"`
	Format  uint32          `json:"format"` // version of the store's format
	Params  json.RawMessage `json:"params"` // the store's own
	Nodes   []Node          `json:"nodes"`
	Memory  []Use           `json:"memory"`
	Places  int             `json:"places"` // clients that the pool has room for; 0 where that is not known
	Clients []Client        `json:"clients"`

	doc string
}

// Node is one memory node.
type Node struct {
	Bytes uint64 `json:"bytes"`
	Up    bool   `json:"up"`
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
}

// Status looks at a pool. It may run while clients do.
func Status(addr string) (*State, error) {
	p, err := stores.Open(addr)
	if err != nil {
		return nil, explain(err, addr)
	}
	defer p.Close()
	return stateOf(p)
}

func stateOf(p *stores.Pool) (*State, error) {
	s := &State{
		Pool: p.Address, Store: p.Kind.Name, Format: p.Header.Version, Params: p.Header.Params, doc: p.Kind.Doc,
		Clients: clientsOf(p.Fabric),
	}
	marked, _ := p.Fabric.(interface{ NodeDown(node int) bool })
	for n := range p.Fabric.Nodes() {
		s.Nodes = append(s.Nodes, Node{Bytes: p.Fabric.Size(), Up: marked == nil || !marked.NodeDown(n)})
	}
	if g, ok := p.Fabric.(interface{ Geometry() fabrics.Geometry }); ok {
		s.Places = g.Geometry().Clients
	}
	uses, err := p.Kind.Usage(p.Fabric)
	if err != nil {
		return nil, explain(fmt.Errorf("status of %s: %w", p.Address, err), p.Address)
	}
	for _, u := range uses {
		s.Memory = append(s.Memory, Use{u.Name, u.Count, u.Bytes})
	}
	return s, nil
}

func clientsOf(f rdma.Fabric) []Client {
	all := []Client{}
	for _, c := range f.Clients() {
		all = append(all, Client{ID: int(c.ID), Name: c.Name, PID: c.PID, Alive: c.Alive})
	}
	return all
}

// living returns those that are alive.
func living(all []Client) (live []Client) {
	for _, c := range all {
		if c.Alive {
			live = append(live, c)
		}
	}
	return live
}

// crowd names clients in a few words.
func crowd(all []Client) string {
	const most = 3
	var names []string
	for _, c := range all[:min(most, len(all))] {
		names = append(names, fmt.Sprintf("%d %q of process %d", c.ID, c.Name, c.PID))
	}
	if len(all) > most {
		names = append(names, fmt.Sprintf("%d more", len(all)-most))
	}
	return plural(len(all), "live client", "live clients") + ": " + strings.Join(names, ", ")
}

// Print implements Result.
func (s *State) Print(w io.Writer) {
	total, down := uint64(0), 0
	for _, n := range s.Nodes {
		total += n.Bytes
		if !n.Up {
			down++
		}
	}
	up := "all up"
	if down > 0 {
		up = count(down) + " DOWN"
	}
	live := len(living(s.Clients))
	clients := fmt.Sprintf("%s live, %s dead", count(live), count(len(s.Clients)-live))
	if s.Places > 0 {
		clients += fmt.Sprintf(", places for %s", count(s.Places))
	}
	table(w, [][]string{
		{"pool", s.Pool},
		{"store", s.Store + ": " + s.doc},
		{"nodes", fmt.Sprintf("%d of %s, %s in all; %s", len(s.Nodes), size(s.Nodes[0].Bytes), size(total), up)},
		{"clients", clients},
	}, 1)
	if rows := parameters(s.Params); len(rows) > 0 {
		fmt.Fprintln(w)
		table(w, append([][]string{{"parameter", "value"}}, rows...))
	}
	s.printDetails(w)
}

func (s *State) printDetails(w io.Writer) {
	rows := [][]string{{"memory", "number", "bytes of all replicas"}}
	for _, u := range s.Memory {
		rows = append(rows, []string{u.Purpose, count(u.Count), size(u.Bytes)})
	}
	fmt.Fprintln(w)
	table(w, rows)
	if len(s.Clients) == 0 {
		return
	}
	const most = 20
	rows = [][]string{{"client", "process", "state", "name"}}
	for _, c := range s.Clients[:min(most, len(s.Clients))] {
		state := "live"
		if !c.Alive {
			state = "dead, waits for recovery"
		}
		rows = append(rows, []string{fmt.Sprint(c.ID), fmt.Sprint(c.PID), state, c.Name})
	}
	fmt.Fprintln(w)
	table(w, rows, 2, 3)
	if n := len(s.Clients) - most; n > 0 {
		fmt.Fprintf(w, "and %s more\n", count(n))
	}
}

// parameters writes a store's parameters, a flat JSON object, in rows; of anything else it makes none.
func parameters(text json.RawMessage) (rows [][]string) {
	var all map[string]any
	if json.Unmarshal(text, &all) != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		if n, ok := v.(float64); ok {
			v = count(int64(n))
		}
		rows = append(rows, []string{strings.ReplaceAll(name, "_", " "), fmt.Sprint(v)})
	}
	return rows
}
