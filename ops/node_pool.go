package ops

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
)

// stopTime is how long a node may take to end before it is killed. drainTime of it is for draining.
const stopTime, drainTime = 5 * time.Second, 2 * time.Second

// Starter is the configuration of memory nodes that are started on this machine.
type Starter struct {
	Program string // this one: they are processes of it
	Fabric  string // that they are for: of fabrics.NodeFabrics
	// PMem is the folder for the memory of the nodes; "": it is not kept. Power makes it survive a
	// loss of power. Shape is the text of the flags for the pool's shape. A pool in the folder is
	// brought back if it was made with the same Shape, or if Shape is empty.
	PMem  string
	Power bool
	Shape []string
	// PMemModel makes each node count by a model of persistent memory: see NodeConfig.
	PMemModel bool
}

// UpStarted starts memory nodes on this machine and makes a pool on them. Nodes and pool stay until
// Down. When it fails, it ends the nodes. When by.PMem holds a pool of the same shape, it brings
// that one back.
func UpStarted(ctx context.Context, by Starter, name, store string, p stores.Params) (*Made, error) {
	if err := local.CheckName(name); err != nil {
		return nil, workloads.Usagef("up --fabric %s: %v", by.Fabric, err)
	}
	if err := by.may(name); err != nil {
		return nil, err
	}
	data, err := by.data()
	if err != nil {
		return nil, err
	}
	if data != nil && len(data.Addresses) > 0 {
		return by.bringBack(ctx, name, data)
	}
	kind, err := stores.Lookup(store)
	if err != nil {
		return nil, Explain(err, name)
	}
	p = kind.Size(p)
	if err := p.Check(kind); err != nil {
		return nil, explainShape(err, name)
	}
	// Nodes have room for usual telemetry beside their memory.
	more := telemetry.Bytes(max(p.Telemetry, telemetry.Records)) - telemetry.Bytes(telemetry.Records)
	nodes := localNodes{Starter: by, data: data, n: p.Nodes, memory: p.Memory + more}
	if !p.Overcommit && data == nil { // of all nodes together, which each would find room for alone
		if err := fabrics.AffordNodes(by.Fabric, "", p.Nodes, fabrics.NodeOf(nodes.memory).Bytes()); err != nil {
			return nil, Explain(fmt.Errorf("up --fabric %s %s: %w", by.Fabric, name, err), name)
		}
	}
	if data != nil {
		data.Memory, data.Power, data.Store, data.Shape = nodes.memory, by.Power, store, by.Shape
		if err := data.Make(); err != nil {
			return nil, explainData(err)
		}
	}
	made, err := nodes.up(ctx, name, store, func(addr string, all []string) (*stores.Pool, error) {
		pool, err := stores.Create(addr, store, p)
		if err != nil || data == nil {
			return pool, err
		}
		if err := data.Made(all); err != nil { // a crash before leaves files of no pool
			return nil, errors.Join(err, pool.Close())
		}
		return pool, nil
	})
	if err != nil {
		if data != nil {
			err = errors.Join(err, local.RemoveData(data.Folder()))
		}
		return nil, err
	}
	made.warn(cramped(kind, p))
	return made, nil
}

// localNodes are memory nodes that are started on this machine.
type localNodes struct {
	Starter
	data   *local.Data // nil: they remember nothing
	n      int
	memory uint64 // bytes of each
}

// up starts the nodes, and makes or opens their pool as open does.
func (s *localNodes) up(ctx context.Context, name, store string,
	open func(addr string, all []string) (*stores.Pool, error),
) (made *Made, err error) {
	back := s.data != nil && len(s.data.Addresses) > 0
	here, err := local.Create(name)
	if err != nil {
		return nil, explainStarted(err, name)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, here.Stop(stopTime))
		}
	}()
	if s.data != nil {
		here.Data = s.data.Folder()
	}
	token, err := tokenFile(here)
	if err != nil {
		return nil, err
	}
	if err := here.Start(ctx, s.n, s.command(token)); err != nil {
		return nil, fmt.Errorf("up %s: %w", name, err)
	}
	var all []string
	for _, n := range here.Nodes {
		all = append(all, n.Address)
	}
	addr := s.Fabric + ":" + strings.Join(all, ",")
	pool, err := open(addr, all)
	if err != nil {
		return nil, explainShape(err, addr)
	}
	defer pool.Close()
	if err := here.Made(addr); err != nil {
		return nil, err
	}
	began := time.Now()
	absent, unserved := awaitServers(ctx, pool, back)
	if unserved != nil && !back {
		return nil, fmt.Errorf("up %s: %w", name, unserved)
	}
	if back && pool.Kind.Serve != nil && pool.Kind.Recoverer != nil {
		// Servers wait for another term, whatever is missing: others serve its shards then.
		unserved = errors.Join(unserved, (&Recovery{Pool: addr}).recover(ctx, pool))
	}
	made, err = madeOf(pool, store)
	if err == nil { // what is there stays
		if back {
			made.Repaired = repairedSince(pool, began)
		}
		for _, why := range absent {
			made.warn(why)
		}
		if unserved != nil {
			made.warn(strings.Join(strings.Split(unserved.Error(), "\n"), "; "))
		}
	}
	if err == nil && s.data != nil {
		made.Kept = s.data.Folder()
	}
	return made, err
}

// may returns an error when no nodes can be started on this machine under a name.
func (s Starter) may(name string) error {
	if err := fabrics.Lacks(s.Fabric); err != nil {
		return workloads.Usagef("up --fabric %s: %v", s.Fabric, err)
	}
	if s.PMemModel && fabrics.NeedsDevice(s.Fabric) {
		return workloads.Usagef("--pmem-model is for --fabric tcp: it does not see what an RNIC does")
	}
	for _, v := range []string{fabrics.EnvCA, fabrics.EnvCert, fabrics.EnvKey, fabrics.EnvReadToken} {
		if os.Getenv(v) != "" {
			return workloads.Usagef("up --fabric %s: $%s is set, and nodes that it starts know a token and nothing "+
				"else (hint: unset it, or start nodes with 'farkv node' and name them: farkv up %s:HOST:PORT,...)",
				s.Fabric, v, s.Fabric)
		}
	}
	pools, err := fabrics.List()
	if err == nil && slices.Contains(pools, "shm:"+name) {
		return fmt.Errorf("up --fabric %s %s: %w in this machine's shared memory (hint: choose another name, or "+
			"remove it with 'farkv down shm:%s')", s.Fabric, name, fabrics.ErrExists, name)
	}
	return nil
}

// tokenFile returns the path of the token for a pool's nodes: the one in the environment, or a new
// one in the pool's run folder. The path is absolute, since nodes are started in another folder.
func tokenFile(here *local.Pool) (string, error) {
	if name := os.Getenv(fabrics.EnvToken); name != "" {
		return filepath.Abs(name)
	}
	return here.MakeToken()
}

// command is the command line of a node that is started here.
func (s *localNodes) command(token string) local.Command {
	return func(node int, pidFile string) []string {
		listen := "127.0.0.1:0"
		var more []string
		if s.PMemModel {
			more = append(more, "--pmem-model")
		}
		if s.data != nil {
			more = append(more, "--pmem", s.data.File(node))
			if len(s.data.Addresses) > 0 {
				listen = s.data.Addresses[node]
			}
			if s.Power {
				more = append(more, "--power")
			}
		}
		return append([]string{s.Program, "node", "--await-starter", "--fabric", s.Fabric, "--listen", listen,
			"--memory", strconv.FormatUint(s.memory, 10), "--overcommit", "--pid-file", pidFile, "--drain",
			drainTime.String(),
			"--output", "json", "--token-file", token}, more...)
	}
}

// madeOf describes a new pool.
func madeOf(pool *stores.Pool, store string) (*Made, error) {
	s, err := stateOf(pool)
	if err != nil {
		return nil, err
	}
	m := &Made{State: s, Limit: pool.Kind.Limit}
	if store != s.Store {
		m.Variant = store
	}
	m.Warning = frail(pool.Address)
	return m, nil
}

// frail returns the warning for a pool that stops when one memory node dies.
func frail(addr string) string {
	all, err := ServedBy(addr, nil)
	if err != nil || len(all) == 0 || len(all) > 2 {
		return ""
	}
	return fmt.Sprintf("a pool of %s does not outlive the death of one: a majority of them has to live, of three two "+
		"(hint: one more may be a witness, see 'farkv help up')", format.Plural(len(all), "node", "nodes"))
}

// explainStarted adds hints to errors of package local.
func explainStarted(err error, name string) error {
	remove := fmt.Sprintf("remove it with 'farkv down %s'", name)
	if p, err := local.Open(name); err == nil && p.Data != "" {
		remove = fmt.Sprintf("end it with 'farkv down %s', which leaves what its nodes remember", name)
	}
	return workloads.Explain(err, []workloads.Hint{
		{Of: of(local.ErrName), Misuse: true},
		{Of: of(local.ErrExists), Say: "use it, choose another name, or " + remove},
		{Of: of(local.ErrFolder), Say: "$XDG_RUNTIME_DIR may name another place"},
		{Of: of(local.ErrRecord), Say: fmt.Sprintf("end what runs there by hand, and remove %s/%s",
			local.Root(), name)},
	})
}

// StartedHere returns the pool of that name or address when its nodes were started on this machine,
// and nil otherwise.
func StartedHere(pool string) *local.Pool {
	if !strings.Contains(pool, ":") {
		p, err := local.Open(pool)
		if err != nil {
			return nil
		}
		return p
	}
	names, err := local.List()
	if err != nil {
		return nil
	}
	for _, name := range names {
		if p, err := local.Open(name); err == nil && p.Address == pool {
			return p
		}
	}
	return nil
}

// Resolve returns the address of a pool: for a name under which 'farkv up --fabric' started nodes
// the address of these, else its argument. It returns an error when the pool was not finished, or
// when its record is damaged.
func Resolve(pool string) (string, error) {
	if strings.Contains(pool, ":") || local.CheckName(pool) != nil {
		return pool, nil
	}
	p, err := local.Open(pool)
	switch {
	case errors.Is(err, local.ErrNoPool):
		return pool, nil
	case err != nil:
		return "", explainStarted(err, pool)
	case p.Address == "":
		return "", fmt.Errorf("%s: making this pool was cut off, or goes on (hint: 'farkv down %s' ends what was "+
			"started)", pool, pool)
	}
	return p.Address, nil
}

// AddStarted adds the pools with nodes that were started on this machine.
func (p *Pools) AddStarted() error {
	names, err := local.List()
	if err != nil {
		return explainStarted(err, "")
	}
	for _, name := range names {
		addr, err := Resolve(name)
		e := Entry{}
		if err != nil {
			e.Problem = err.Error()
		} else {
			e = entry(addr)
		}
		e.Pool = name
		p.Pools = append(p.Pools, e)
	}
	return nil
}

// downStarted ends the nodes of a pool that were started on this machine, and with them the pool.
// Unless forced it refuses while clients live.
func downStarted(p *local.Pool, force, purge bool) (*Removed, error) {
	r := &Removed{Pool: p.Name, Kept: p.Data}
	if err := mayPurge(p, purge); err != nil {
		return nil, err
	}
	for i := range p.Nodes {
		if p.Alive(i) {
			r.Stopped++
		}
	}
	// No program can use a pool without a majority of its nodes.
	if !force && p.Address != "" && r.Stopped > len(p.Nodes)/2 {
		live, err := usersOf(p.Address)
		switch {
		case err != nil:
			return nil, fmt.Errorf("remove %s: it is not known whether clients live: %w (hint: try again, or --force)",
				p.Name, err)
		case len(live) > 0:
			return nil, fmt.Errorf("remove %s: %w: %s (hint: end them first, or --force: they lose their pool)", p.Name,
				fabrics.ErrInUse, crowd(live))
		}
	}
	if err := p.Stop(stopTime); err != nil {
		return nil, err
	}
	if purge {
		r.Kept = ""
		return r, local.RemoveData(p.Data)
	}
	return r, nil
}

// usersOf returns the live clients of a pool.
func usersOf(addr string) ([]Client, error) {
	p, err := stores.Open(addr)
	if errors.Is(err, fabrics.ErrNoPool) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := clientsOf(p.Fabric)
	return living(all), errors.Join(err, p.Close())
}

// ShortName names a pool as its user would.
func ShortName(addr string) string {
	if p := StartedHere(addr); p != nil {
		return p.Name
	}
	return strings.TrimPrefix(addr, "shm:")
}
