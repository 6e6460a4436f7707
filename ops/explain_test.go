package ops

import (
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/runner"
)

func TestExplain(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", "/pools")
	for _, c := range []struct {
		err    error
		pool   string
		says   string
		misuse bool
	}{
		{fmt.Errorf("index: %w", rdma.ErrFull), "p", "--records sizes the index", false},
		{fmt.Errorf("%w: %w", rdma.ErrFull, syscall.ENOSPC), "p", "make room in the folder", false},
		{fmt.Errorf("%w: %w", rdma.ErrFull, syscall.EFBIG), "p", "make a smaller pool", false},
		{client.ErrDamaged, "shm:p", "'farkv check p'", false},
		{client.ErrTooLarge, "p", "split the value", false},
		{fabrics.ErrNoPool, "p", "'farkv up p'", false},
		{fabrics.ErrNoPool, "mem:", "no such pool", true},
		{fabrics.ErrFormat, "p", "'farkv down --force p'", false},
		{fabrics.ErrIrregular, "p", "by hand", false},
		{node.ErrOtherVersion, "p", "use the farkv that made it", false},
		{fabrics.ErrFolder, "p", "$FARKV_SHM_DIR names it", false},
		{fabrics.ErrNoPool, "consul:h:1/p", "'farkv up consul:h:1/p' makes it)", false},
		{fabrics.ErrToken, "tcp:h:1", "$FARKV_TOKEN_FILE names", false},
		{fmt.Errorf("%w: %w", rdma.ErrNodeDown, fabrics.ErrTLS), "tcp:h:1", "nodes with TLS", false},
		{rdma.ErrUnreachable, "consul:h:1/p", "does the agent run?", false},
		{fmt.Errorf("%w: %w", rdma.ErrUnreachable, fs.ErrPermission), "consul:h:1/p",
			"the rules that 'farkv help consul' prints", false},
		{fmt.Errorf("%w: %w", rdma.ErrMinority, rdma.ErrNodeDown), "consul:h:1/p",
			"'farkv recover consul:h:1/p' can do nothing", false},
		{fmt.Errorf("%w: %w", rdma.ErrMinority, rdma.ErrNodeDown), "tcp:h:1", "'farkv down --force tcp:h:1' removes it",
			false},
		{fmt.Errorf("recover: %w", errLost), "shm:p", "'farkv recover p' does not bring it back", false},
		{fmt.Errorf("open: %w", fabrics.ErrConnections), "tcp:h:1", "--connections", false},
		{rdma.ErrNodeDown, "tcp:h:1", "'farkv recover tcp:h:1'", false},
	} {
		err := Explain(c.err, c.pool)
		if !strings.Contains(err.Error(), c.says) || runner.Misused(err) != c.misuse {
			t.Errorf("%v: %v", c.err, err)
		}
	}
	t.Setenv("FARKV_SHM_DIR", "")
	if err := Explain(fabrics.ErrFolder, "p"); !strings.Contains(err.Error(), "$FARKV_SHM_DIR may name another") {
		t.Error(err)
	}
}
