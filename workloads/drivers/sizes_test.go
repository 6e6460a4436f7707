package drivers

import (
	"testing"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// TestObjectSizes loads and runs each store with records of several lengths, and checks what reads
// return.
func TestObjectSizes(t *testing.T) {
	for _, kind := range stores.Kinds() {
		for _, sizes := range []string{"zippydb", "up2x", "udb"} {
			p := props("recordcount=300", "operationcount=1000", "threadcount=2", "objectsizes="+sizes,
				"dataintegrity=true",
				"readproportion=0.5", "updateproportion=0.4", "insertproportion=0.1", "farkv.pool=mem:", "command=load")
			loadAndRun(t, kind.Name+" "+sizes, kind, p)
		}
	}
}

// loadAndRun does so with one store and one kind of sizes.
func loadAndRun(t *testing.T, what string, kind *stores.Kind, p *properties.Properties) {
	db, err := storeCreator{name: kind.Name, world: real}.Create(p)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer db.Close()
	c, err := runner.Configure(p)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	c.Database = db.(native).Database
	for _, c.Load = range []bool{true, false} {
		r, err := runner.Run(t.Context(), c)
		if err != nil || r.Failed > 0 || r.Operations < 300 {
			t.Errorf("%s: load %v: %d operations, %d failed, %v", what, c.Load, r.Operations, r.Failed, err)
		}
	}
	s, err := c.Database.Open(0)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer s.Close()
	lengths := map[int]bool{}
	got := workloads.Record{Field: workloads.AllFields, Values: make([][]byte, 1)}
	for n := range c.Spec.RecordCount {
		if err := s.Read(c.Spec.Key(n), &got); err != nil {
			t.Fatalf("%s: record %d: %v", what, n, err)
		}
		lengths[len(got.Values[0])] = true
	}
	if len(lengths) < 20 {
		t.Errorf("%s: values of %d lengths alone", what, len(lengths))
	}
}
