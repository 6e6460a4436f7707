package drivers

import (
	"slices"
	"strconv"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads/runner"
)

// PropertiesOf documents the properties that one of our stores understands besides YCSB's, with its own defaults.
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
		case "farkv.nodes":
			q.Default = strconv.Itoa(made.Nodes)
		case replicas:
			q.Default = strconv.Itoa(made.DataReplicas)
			q.Doc = "copies of index and data in a pool that load makes: " + k.Replicas
		case "farkv.indexreplicas", "farkv.datareplicas":
			if !k.Split {
				continue
			}
		}
		own = append(own, q)
	}
	return own
}
