package drivers

import (
	"strings"
	"testing"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads/runner"
)

// TestServers loads and runs YCSB's mixes on stores with servers beside their nodes, all in this
// process. Each value that is read is checked, and then the pool.
func TestServers(t *testing.T) {
	for _, kind := range stores.Kinds() {
		if kind.Serve == nil {
			continue
		}
		for _, mix := range []string{
			"readproportion=0.5 updateproportion=0.5", "readproportion=0.95 updateproportion=0.05",
			"readproportion=1 updateproportion=0",
			"readproportion=0.95 updateproportion=0 insertproportion=0.05 requestdistribution=latest",
			"readproportion=0.5 updateproportion=0 readmodifywriteproportion=0.5",
		} {
			p := props(append([]string{"recordcount=1000", "operationcount=5000", "threadcount=4",
				"dataintegrity=true", "farkv.pool=mem:", "requestdistribution=zipfian", "command=load"},
				strings.Fields(mix)...)...)
			db, err := storeCreator{name: kind.Name, world: real}.Create(p)
			if err != nil {
				t.Fatal(err)
			}
			c, err := runner.Configure(p)
			if err != nil {
				t.Fatal(err)
			}
			c.Database = db.(native).Database
			for _, c.Load = range []bool{true, false} {
				r, err := runner.Run(t.Context(), c)
				if err != nil || r.Failed > 0 || r.Operations < 1000 {
					t.Errorf("%s, %s, load %t: %d operations, %d failed, %v", kind.Name, mix, c.Load, r.Operations,
						r.Failed, err)
				}
			}
			f := c.Database.(*pool).fabric
			found, err := kind.Check(f)
			if err != nil || len(found.Damage) > 0 {
				t.Errorf("%s, %s: %v, %v", kind.Name, mix, found.Damage, err)
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
