package drivers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/runner"
)

// About tells of a database on a pool what its user may not have said: the properties that hold,
// defaults too, and in a line that this process made the pool, if it did and the pool stays. Of
// others there is nothing to tell.
func About(db Database) (holds map[string]string, made string) {
	d := poolOf(db)
	if d == nil {
		return nil, ""
	}
	t := d.terms()
	holds = map[string]string{"farkv.pool": d.addr, "farkv.nodes": strconv.Itoa(t.Nodes),
		"farkv.memory": strconv.FormatUint(d.fabric.Size(), 10)}
	if t.IndexReplicas > 0 && t.DataReplicas > 0 {
		holds["farkv.indexreplicas"], holds["farkv.datareplicas"] = strconv.Itoa(t.IndexReplicas),
			strconv.Itoa(t.DataReplicas)
		if t.IndexReplicas == t.DataReplicas {
			holds["farkv.replicas"] = strconv.Itoa(t.DataReplicas)
		}
	}
	if d.made && !fabrics.Private(d.addr) {
		name := cmp.Or(d.name, d.addr)
		made = fmt.Sprintf("Made pool %s: %d nodes of %s, taken as they fill; it stays until 'farkv down %s'", name,
			d.fabric.Nodes(), mebibytes(d.fabric.Size()), strings.TrimPrefix(name, "shm:"))
	}
	return holds, made
}

// Terms returns those of a database's pool, without what its user knows of the workload. A database
// that is on none has none.
func Terms(db Database) runner.Terms {
	if d := poolOf(db); d != nil {
		return d.terms()
	}
	return runner.Terms{}
}

// poolOf returns the pool of ours that a database is on; nil: it is on none.
func poolOf(db Database) *pool {
	n, ok := db.(native)
	if !ok {
		return nil
	}
	d, _ := n.Database.(*pool)
	return d
}

// terms are those of the pool. Replicas and format are in its header, which names the replicas once
// where index and data have as many; they are 0 where it names none.
func (d *pool) terms() runner.Terms {
	t := runner.Terms{Pool: d.addr, Fabric: d.over(), Nodes: d.fabric.Nodes()}
	ep, err := d.fabric.Open("header")
	if err != nil {
		return t
	}
	defer ep.Close()
	h, err := node.ReadHeader(ep, d.fabric.Nodes())
	var p struct {
		All   int `json:"replicas"`
		Index int `json:"index_replicas"`
		Data  int `json:"data_replicas"`
	}
	if err == nil && json.Unmarshal(h.Params, &p) == nil {
		t.Format, t.IndexReplicas, t.DataReplicas = h.Version, cmp.Or(p.Index, p.All), cmp.Or(p.Data, p.All)
	}
	return t
}

// over is what the pool's verbs go over. The address of a consul: pool does not tell.
func (d *pool) over() string {
	if f, ok := d.fabric.(rdma.CarrierNamer); ok {
		return f.Carrier()
	}
	a, err := fabrics.Parse(d.addr)
	if err != nil {
		return ""
	}
	return a.Scheme
}
