package ops

import (
	"errors"
	"fmt"
	"io"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
)

// Pools are those of this machine.
type Pools struct {
	Pools []Entry `json:"pools"`
}

// Entry is one of them.
type Entry struct {
	Pool    string `json:"pool"`
	Store   string `json:"store,omitempty"`
	Nodes   int    `json:"nodes,omitempty"`
	Bytes   uint64 `json:"bytes,omitempty"` // of all nodes
	Live    int    `json:"live"`
	Dead    int    `json:"dead"`
	Problem string `json:"problem,omitempty"` // why nothing else is known
}

// About says in a few words what the pool is.
func (e *Entry) About() string {
	if e.Problem != "" {
		return e.Problem
	}
	return fmt.Sprintf("%s, %s, %s", e.Store, format.Plural(e.Nodes, "node", "nodes"),
		format.Plural(e.Live, "live client", "live clients"))
}

// List returns this machine's pools, those that cannot be opened too.
func List() (*Pools, error) {
	all, err := fabrics.List()
	if err != nil {
		return nil, Explain(err, "")
	}
	p := &Pools{Pools: []Entry{}}
	for _, addr := range all {
		p.Pools = append(p.Pools, entry(fabrics.AsListed(addr)))
	}
	return p, nil
}

func entry(addr string) Entry {
	p, err := stores.Open(addr)
	if err != nil {
		if errors.Is(err, fabrics.ErrForeign) {
			err = Explain(err, addr)
		}
		return Entry{Pool: addr, Problem: err.Error()}
	}
	defer p.Close()
	live, dead, err := CountClients(p.Fabric)
	if err != nil {
		return Entry{Pool: addr, Problem: err.Error()}
	}
	return Entry{
		Pool: addr, Store: p.Kind.Name, Nodes: p.Fabric.Nodes(), Bytes: uint64(p.Fabric.Nodes()) * p.Fabric.Size(),
		Live: live, Dead: dead,
	}
}

// Print implements Result.
func (p *Pools) Print(w io.Writer) {
	if len(p.Pools) == 0 {
		fmt.Fprintln(w, "no pools: 'farkv up' makes one")
		return
	}
	rows := [][]string{{"pool", "store", "nodes", "memory", "clients live", "clients dead"}}
	for _, e := range p.Pools {
		if e.Problem == "" {
			rows = append(rows, []string{e.Pool, e.Store, format.Count(e.Nodes), format.Size(e.Bytes),
				format.Count(e.Live), format.Count(e.Dead)})
		}
	}
	if len(rows) > 1 {
		table.Print(w, rows, 1)
	}
	for _, e := range p.Pools {
		if e.Problem != "" {
			fmt.Fprintf(w, "%s cannot be used: %s\n", e.Pool, e.Problem)
		}
	}
}
