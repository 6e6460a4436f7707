package runner

import (
	"fmt"
	"strings"
)

// Terms are what a run's figures hold for. What does not apply is left out.
type Terms struct {
	Store         string `json:"store"`
	Format        uint32 `json:"format,omitempty"` // version of the pool's format
	Pool          string `json:"pool,omitempty"`   // its address
	Fabric        string `json:"fabric,omitempty"` // mem, shm, tcp or rdma
	Nodes         int    `json:"nodes,omitempty"`  // spares included
	IndexReplicas int    `json:"index_replicas,omitempty"`
	DataReplicas  int    `json:"data_replicas,omitempty"`
	Records       int64  `json:"records"`
	Threads       int    `json:"threads"`
	Commit        string `json:"commit"` // that this program was built from
	Wire          int    `json:"wire"`   // version of what is said to memory nodes
}

// String returns the terms as one line.
func (t Terms) String() string {
	parts := []string{t.Store}
	if t.Fabric != "" {
		parts[0] += " over " + t.Fabric
		parts = append(parts, plural(int64(t.Nodes), "node"))
	}
	switch {
	case t.IndexReplicas == 0 || t.DataReplicas == 0:
	case t.IndexReplicas == t.DataReplicas:
		parts = append(parts, plural(int64(t.DataReplicas), "replica"))
	default:
		parts = append(parts, fmt.Sprintf("%d index and %d data replicas", t.IndexReplicas, t.DataReplicas))
	}
	return strings.Join(append(parts, plural(t.Records, "record"), plural(int64(t.Threads), "thread"),
		"farkv "+t.Commit), ", ")
}

func plural(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
