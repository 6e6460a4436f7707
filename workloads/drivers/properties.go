package drivers

import (
	"fmt"
	"strconv"

	"github.com/farkv/farkv/client/stores"
)

// PropertiesOf documents the properties that one of our stores understands besides YCSB's, with its own defaults.
func PropertiesOf(k *stores.Kind) (own []Property) {
	made := k.Size(stores.Params{})
	for _, q := range Properties {
		switch h := &k.Heeds; q.Name {
		case "farkv.nodes":
			q.Default = strconv.Itoa(made.Nodes)
		case "farkv.replicas":
			q.Default = strconv.Itoa(made.DataReplicas)
			q.Doc = "copies of index and data in a pool that load makes: " + h.Replicas
		case "farkv.indexreplicas", "farkv.datareplicas":
			if !h.Split {
				continue
			}
		case "farkv.levels":
			if !k.Grows {
				continue
			}
			q.Doc = "how many times a full table may double, in a pool that load makes"
		case "farkv.table":
			if !k.Grows {
				continue
			}
			q.Doc = "how the tables are shaped in a pool that load makes: name=value, with commas between, of " + stores.TableDoc
		case "farkv.cachebytes":
			if h.CacheBytes == 0 {
				continue
			}
			q.Default = sizeOf(h.CacheBytes)
		case "farkv.cachethreshold":
			if h.CacheThreshold == 0 {
				continue
			}
			q.Default = fmt.Sprint(h.CacheThreshold)
		}
		own = append(own, q)
	}
	return own
}

// sizeOf writes a number of bytes as ParseBytes reads it, in the largest unit that divides it.
func sizeOf(bytes int) string {
	switch {
	case bytes%(1<<20) == 0:
		return fmt.Sprintf("%dMiB", bytes>>20)
	case bytes%(1<<10) == 0:
		return fmt.Sprintf("%dKiB", bytes>>10)
	}
	return strconv.Itoa(bytes)
}
