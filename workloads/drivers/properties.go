package drivers

import (
	"slices"
	"strconv"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads/runner"
)

// servedPool documents farkv.pool of stores with servers beside their nodes.
const servedPool = "the pool: a NAME of memory nodes that load starts on this machine, until 'farkv down " +
	"NAME', or that 'farkv up NAME' started; mem: ends with the process; tcp:HOST:PORT,..., rdma:HOST:PORT,... and" +
	" consul:HOST:PORT/POOL are on memory nodes that run"

// PropertiesOf documents the properties that one of our stores understands besides YCSB's, with its
// own defaults.
func PropertiesOf(k *stores.Kind) (own []runner.Property) {
	made := k.Size(stores.Params{})
	options := map[string]*stores.Option{}
	for i := range k.Options {
		options[propertyOf(&k.Options[i])] = &k.Options[i]
	}
	others := offered()
	for _, q := range Properties {
		switch o := options[q.Name]; {
		case o != nil:
			q.Default, q.Doc = o.Otherwise(), whenMade(o)
		case slices.ContainsFunc(others, func(p runner.Property) bool { return p.Name == q.Name }):
			continue
		}
		switch q.Name {
		case "farkv.pool":
			if k.Serve != nil {
				q.Default, q.Doc = fabrics.UsualName, servedPool
			}
		case "farkv.nodes":
			q.Default = strconv.Itoa(made.Nodes)
		case replicas:
			q.Default = strconv.Itoa(made.DataReplicas)
			what := "copies of index and data"
			if k.Serve != nil { // its index is not replicated
				what = "copies"
			}
			q.Doc = what + " in a pool that load makes: " + k.Replicas
		case "farkv.indexreplicas", "farkv.datareplicas":
			if !k.Split {
				continue
			}
		}
		own = append(own, q)
	}
	return own
}
