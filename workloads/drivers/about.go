package drivers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/farkv/farkv/node"
)

// About tells of a database on a pool what its user may not have said: the properties that hold, defaults too, and in
// a line that this process made the pool, if it did and the pool stays. Of others there is nothing to tell.
func About(db Database) (holds map[string]string, made string) {
	n, ok := db.(native)
	if !ok {
		return nil, ""
	}
	d, ok := n.Database.(*pool)
	if !ok {
		return nil, ""
	}
	holds = map[string]string{"farkv.pool": d.addr, "farkv.nodes": strconv.Itoa(d.fabric.Nodes()),
		"farkv.memory": strconv.FormatUint(d.fabric.Size(), 10)}
	if index, data := d.replicas(); index > 0 && data > 0 {
		holds["farkv.indexreplicas"], holds["farkv.datareplicas"] = strconv.Itoa(index), strconv.Itoa(data)
		if index == data {
			holds["farkv.replicas"] = strconv.Itoa(index)
		}
	}
	if d.made && !strings.HasPrefix(d.addr, "mem:") {
		made = fmt.Sprintf("Made pool %s: %d nodes of %s, taken as they fill; it stays until 'farkv down %s'", d.addr,
			d.fabric.Nodes(), mebibytes(d.fabric.Size()), strings.TrimPrefix(d.addr, "shm:"))
	}
	return holds, made
}

// replicas are those of the pool's header, which names them once where index and data have as many; 0 where it names none.
func (d *pool) replicas() (index, data int) {
	ep, err := d.fabric.Open("header")
	if err != nil {
		return 0, 0
	}
	defer ep.Close()
	h, err := node.ReadHeader(ep, d.fabric.Nodes())
	var p struct {
		All   int `json:"replicas"`
		Index int `json:"index_replicas"`
		Data  int `json:"data_replicas"`
	}
	if err != nil || json.Unmarshal(h.Params, &p) != nil {
		return 0, 0
	}
	return cmp.Or(p.Index, p.All), cmp.Or(p.Data, p.All)
}
