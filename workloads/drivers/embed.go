package drivers

import (
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// Embed returns the database of a store on a pool that the caller made for it and has open. Close
// closes the fabric.
func Embed(kind *stores.Kind, f rdma.Fabric, o stores.Options, s *workloads.Spec) runner.Database {
	return &pool{kind: kind, fabric: f, opts: o, table: s.Table, fields: s.FieldCount}
}
