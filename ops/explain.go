package ops

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

// explain adds to an error about a pool what its user can do. What no state of the world would make right is a
// workloads.UseError.
func explain(err error, pool string) error {
	alone := fabrics.Private(pool)
	pool = strings.TrimPrefix(pool, "shm:")
	hint := func(format string, args ...any) error {
		return fmt.Errorf("%w (hint: %s)", err, fmt.Sprintf(format, args...))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fabrics.ErrAddress), errors.Is(err, stores.ErrUnknown), errors.Is(err, stores.ErrParams),
		errors.Is(err, fabrics.ErrNotBuilt), errors.Is(err, fabrics.ErrDevice),
		errors.Is(err, fabrics.ErrNoPool) && alone:
		return workloads.Misuse("%v", err)
	case errors.Is(err, fabrics.ErrOvercommit):
		return hint("lower --records, --memory or --nodes; with --overcommit 'farkv up' and 'farkv node' take what is there, and " +
			"fail when that is used up")
	case errors.Is(err, fabrics.ErrForeign) && !strings.Contains(pool, ":"):
		return hint("if it is meant to be shared with other users of this machine, shared:%s opens it; they can break what is in it", pool)
	case errors.Is(err, fabrics.ErrTruncated):
		return hint("what was in it is lost: 'farkv down --force %s' removes it", pool)
	case errors.Is(err, fabrics.ErrNoPool) && strings.Contains(pool, ":"):
		return hint("'farkv up %s' makes it", pool)
	case errors.Is(err, fabrics.ErrNoPool):
		return hint("'farkv up %s' makes it; 'farkv list' shows the pools there are", pool)
	case errors.Is(err, fabrics.ErrExists):
		return hint("use it, choose another name, or remove it with 'farkv down %s'", pool)
	case errors.Is(err, fabrics.ErrFolder):
		return hint("%s; a pool needs a folder that is there and that you may write to", folderFrom())
	case errors.Is(err, fabrics.ErrIrregular):
		return hint("choose another name, or remove it by hand")
	case errors.Is(err, fabrics.ErrFormat):
		return hint("choose another name; 'farkv down --force %s' removes whatever is there", pool)
	case errors.Is(err, node.ErrNoStore):
		return hint("its maker did not finish, or it is damaged; 'farkv down %s' removes it", pool)
	case errors.Is(err, node.ErrOtherStore):
		return hint("use the program that made it, or make another with 'farkv up'")
	case errors.Is(err, node.ErrOtherVersion):
		return hint("use the farkv that made it, or make another with 'farkv up'; 'farkv version' lists the formats that this one reads")
	case errors.Is(err, fs.ErrPermission) && strings.HasPrefix(pool, "consul:"):
		return hint("CONSUL_HTTP_TOKEN has to name a token with the rules that 'farkv help consul' prints")
	case errors.Is(err, fs.ErrPermission):
		return hint("the pool belongs to another user")
	case errors.Is(err, syscall.ENOSPC):
		return hint("make room in the folder of pools, or make a smaller pool; 'farkv list' shows the pools there are")
	case errors.Is(err, syscall.EFBIG):
		return hint("the folder's file system holds no such file: make a smaller pool")
	case errors.Is(err, client.ErrUncertain):
		return hint("a client died in the midst of a write, or a node is down: see 'farkv status %s'", pool)
	case errors.Is(err, client.ErrDamaged):
		return hint("'farkv check %s' looks for damage", pool)
	case errors.Is(err, client.ErrTooLarge):
		return hint("split the value, or make a pool for larger pairs: see 'farkv up --help'")
	case errors.Is(err, fabrics.ErrToken):
		return hint("$%s names the file with the nodes' token; see 'farkv help tcp'", fabrics.EnvToken)
	case errors.Is(err, fabrics.ErrTLS):
		return hint("'farkv help tcp' tells what nodes with TLS want of their clients")
	case errors.Is(err, fabrics.ErrConnections):
		return hint("end programs that use its nodes, or start nodes with more --connections; readers may have half of them, "+
			"and 'farkv status %s' has some in reserve", pool)
	case errors.Is(err, rdma.ErrAccess) && os.Getenv(fabrics.EnvReadToken) != "":
		return hint("who knows only the token that $%s names may read, and change nothing", fabrics.EnvReadToken)
	case errors.Is(err, rdma.ErrMinority):
		return hint("%s; 'farkv status %s' shows the nodes", minority(short(pool)), pool)
	case errors.Is(err, errLost):
		return hint("%s", lostHint(short(pool)))
	case errors.Is(err, rdma.ErrUnreachable) && strings.HasPrefix(pool, "consul:"):
		return hint("does the agent run? Until it is back nobody can open the pool; see 'farkv help consul'")
	case errors.Is(err, rdma.ErrNodeDown):
		return hint("'farkv status %s' shows the nodes and how many more may die, 'farkv recover %s' replaces those that are down",
			pool, pool)
	case errors.Is(err, rdma.ErrFull):
		return hint("make a larger pool: --records sizes the index, --memory has to hold the pairs, --clients those who use it")
	}
	return err
}

// explainAt is explain for what failed on a pool that could be opened: where a node is down it says when copies are lost. It
// opens the pool once more, since a DB that failed has closed it.
func explainAt(err error, addr string) error {
	if !errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrMinority) {
		return explain(err, addr)
	}
	p, e := stores.Open(addr)
	if e != nil {
		return explain(err, addr)
	}
	defer p.Close()
	if !marginOf(p).lost() {
		return explain(err, addr)
	}
	return fmt.Errorf("%w (hint: %s)", err, lostHint(short(addr)))
}

// folderFrom says where the folder of pools comes from.
func folderFrom() string {
	if os.Getenv("FARKV_SHM_DIR") == "" {
		return "$FARKV_SHM_DIR may name another"
	}
	return "$FARKV_SHM_DIR names it"
}
