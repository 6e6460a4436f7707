package drivers

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/runner"
)

func TestErrorsOfPoolsAreExplained(t *testing.T) {
	for _, c := range []struct {
		err    error
		misuse bool
		want   string
	}{
		{fabrics.ErrFormat, false, "use another farkv.pool, or remove it"},
		{node.ErrNoStore, false, "use another farkv.pool, or remove it"},
		{node.ErrOtherStore, false, "load with dropdata=true"},
		{node.ErrOtherVersion, false, "use the go-ycsb of the farkv that made it"},
		{rdma.ErrFull, false, "cannot open it: x: full"},
		{fs.ErrPermission, false, "cannot open it: x: permission denied (hint: it belongs to another user"},
		{stores.ErrParams, true, "cannot open it: x: bad pool parameters"},
	} {
		err := explain(fmt.Errorf("x: %w", c.err), "shm:p", "open it")
		if runner.Misused(err) != c.misuse || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(err.Error(), "shm:p") {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
