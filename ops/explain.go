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
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
)

// Explain adds a hint on what the user can do to an error about a pool. An error that no change of
// the pool or the machine would avoid becomes a workloads.UsageError.
func Explain(err error, pool string) error { return workloads.Explain(err, Hints(pool)) }

// of lists the errors that a hint is for.
func of(errs ...error) []error { return errs }

// Hints returns the hints for errors about a pool. The first that matches an error is used.
func Hints(pool string) []workloads.Hint {
	private := fabrics.Private(pool)
	pool = strings.TrimPrefix(pool, "shm:")
	consul, address := strings.HasPrefix(pool, "consul:"), strings.Contains(pool, ":")
	about := func(format string) string { return fmt.Sprintf(format, pool) }
	return []workloads.Hint{
		{Of: of(fabrics.ErrAddress, stores.ErrUnknown, stores.ErrParams, fabrics.ErrNotBuilt, fabrics.ErrDevice),
			Misuse: true},
		{Of: of(fabrics.ErrNoPool), Unless: !private, Misuse: true},
		{Of: of(fabrics.ErrOvercommit),
			Say: "lower --records, --memory or --nodes; with --overcommit 'farkv up' and 'farkv node' take what is " +
				"there, and fail when that is used up"},
		{Of: of(fabrics.ErrForeign), Unless: address,
			Say: about("if it is meant to be shared with other users of this machine, shared:%s opens it; they can " +
				"break what is in it")},
		{Of: of(fabrics.ErrTruncated), Say: about("what was in it is lost: 'farkv down --force %s' removes it")},
		{Of: of(fabrics.ErrNoPool), Unless: !address, Say: about("'farkv up %s' makes it")},
		{Of: of(fabrics.ErrNoPool), Say: about("'farkv up %s' makes it; 'farkv list' shows the pools there are")},
		{Of: of(fabrics.ErrExists), Say: about("use it, choose another name, or remove it with 'farkv down %s'")},
		{Of: of(fabrics.ErrFolder),
			Say: format.FolderSetting() + "; a pool needs a folder that is there and that you may write to"},
		{Of: of(fabrics.ErrIrregular), Say: "choose another name, or remove it by hand"},
		{Of: of(fabrics.ErrFormat),
			Say: about("choose another name; 'farkv down --force %s' removes whatever is there")},
		{Of: of(node.ErrNoStore), Say: about("its maker did not finish, or it is damaged; 'farkv down %s' removes it")},
		{Of: of(node.ErrOtherStore), Say: "use the program that made it, or make another with 'farkv up'"},
		{Of: of(node.ErrOtherVersion),
			Say: "use the farkv that made it, or make another with 'farkv up'; 'farkv version' lists the formats " +
				"that this one reads"},
		{Of: of(fs.ErrPermission), Unless: !consul,
			Say: "CONSUL_HTTP_TOKEN has to name a token with the rules that 'farkv help consul' prints"},
		{Of: of(fs.ErrPermission), Say: "the pool belongs to another user"},
		{Of: of(syscall.ENOSPC),
			Say: "make room in the folder of pools, or make a smaller pool; 'farkv list' shows the pools there are"},
		{Of: of(syscall.EFBIG), Say: "the folder's file system holds no such file: make a smaller pool"},
		{Of: of(client.ErrUncertain),
			Say: about("a client died in the midst of a write, or a node is down: see 'farkv status %s'")},
		{Of: of(rdma.ErrTimeout), Say: about("see 'farkv status %s': a node may be down, or not serve")},
		{Of: of(client.ErrDamaged), Say: about("'farkv check %s' looks for damage")},
		{Of: of(client.ErrTooLarge), Say: "split the value, or make a pool for larger pairs: see 'farkv up --help'"},
		{Of: of(fabrics.ErrToken),
			Say: "$" + fabrics.EnvToken + " names the file with the nodes' token; see 'farkv help tcp'"},
		{Of: of(fabrics.ErrTLS), Say: "'farkv help tcp' tells what nodes with TLS want of their clients"},
		{Of: of(fabrics.ErrConnections), Say: about("end programs that use its nodes, or start nodes with more " +
			"--connections; readers may have half of them, and 'farkv status %s' has some in reserve")},
		{Of: of(rdma.ErrAccess), Unless: os.Getenv(fabrics.EnvReadToken) == "",
			Say: "the token that $" + fabrics.EnvReadToken + " names allows reading, and no change"},
		{Of: of(rdma.ErrMinority), Say: minority(ShortName(pool)) + about("; 'farkv status %s' shows the nodes")},
		{Of: of(errLost), Say: lostHint(ShortName(pool))},
		{Of: of(rdma.ErrUnreachable), Unless: !consul,
			Say: "does the agent run? Until it is back no program can open the pool; see 'farkv help consul'"},
		{Of: of(rdma.ErrNodeDown), Unless: sole(pool) == "", Say: sole(pool)},
		{Of: of(rdma.ErrNodeDown), Say: about("'farkv status %[1]s' shows the nodes and how many more may die, " +
			"'farkv recover %[1]s' replaces those that are down")},
		{Of: of(rdma.ErrFull), Say: "make a larger pool: --records sizes the index, --memory has to hold the pairs, " +
			"--clients its clients"},
	}
}

// sole returns the hint for when the only node of a pool is down. It returns "" when 'farkv up' did
// not start the pool on this machine, or the pool has several nodes.
func sole(pool string) string {
	if pool == "" {
		return ""
	}
	here := StartedHere(pool)
	if here == nil || len(here.Nodes) != 1 {
		return ""
	}
	if here.Data != "" {
		return fmt.Sprintf("it is the pool's only node, and no other replica is left: 'farkv down %[1]s', then "+
			"'farkv up --fabric tcp %[1]s --pmem %[2]s' starts it again with what it remembers", here.Name, here.Data)
	}
	return fmt.Sprintf("it is the pool's only node, and no replica is left: what it held is lost; 'farkv down "+
		"--force %s' removes the pool", here.Name)
}

// ExplainAt is Explain for an operation that failed on an open pool. When a node is down and
// copies are lost, it says so. It opens the pool once more, because a DB that failed has closed it.
func ExplainAt(err error, addr string) error {
	if !errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrMinority) {
		return Explain(err, addr)
	}
	p, e := stores.Open(addr)
	if e != nil {
		return Explain(err, addr)
	}
	defer p.Close()
	if !NodeStates(p).Margin.Lost() {
		return Explain(err, addr)
	}
	return fmt.Errorf("%w (hint: %s)", err, lostHint(ShortName(addr)))
}
