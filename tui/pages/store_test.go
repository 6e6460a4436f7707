package pages

import (
	"strings"
	"testing"

	"github.com/farkv/farkv/tui/tuitest"
)

// TestServerRows: what servers beside nodes have is shown in all, and of each.
func TestServerRows(t *testing.T) {
	e := &Env{Last: tuitest.NewPool(1, 1, 1).Next()}
	rows := serverRows(e, 3)
	if len(rows) != 1 || rows[0].name != "servers: primaries" || rows[0].index != 3 || rows[0].total != 47+48 ||
		strings.Join(rows[0].nodes, ", ") != "node 0: 47, node 1: 48" {
		t.Errorf("rows %+v", rows)
	}
}
