package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

// data opens the folder with the files of the nodes. nil: the nodes have no files.
func (s Starter) data() (*local.Data, error) {
	switch {
	case s.PMem == "" && s.Power:
		return nil, workloads.Usagef("--power is for --pmem")
	case s.PMem == "":
		return nil, nil
	case fabrics.NeedsDevice(s.Fabric):
		return nil, workloads.Usagef("--pmem is for --fabric tcp: what an RNIC writes is not flushed")
	}
	d, err := local.OpenData(s.PMem)
	if errors.Is(err, local.ErrData) {
		err = unrecorded(d, err)
	}
	if err != nil {
		return nil, explainData(fmt.Errorf("up --pmem %s: %w", s.PMem, err))
	}
	if len(d.Addresses) > 0 && len(s.Shape) > 0 && !slices.Equal(s.Shape, d.Shape) {
		made := d.Shape
		if !slices.ContainsFunc(made, func(flag string) bool { return strings.HasPrefix(flag, "--store=") }) {
			made = append([]string{"--store=" + d.Store}, made...)
		}
		return nil, workloads.Usagef("up --pmem %s: it holds a pool, made with %s, that keeps its shape (hint: "+
			"leave %s out, or name another folder)", s.PMem, strings.Join(made, " "), strings.Join(s.Shape, " "))
	}
	return d, nil
}

// errUnrecorded is wrapped when files hold the memory of a pool, and the record of the pool is
// gone.
var errUnrecorded = errors.New("its files hold what a pool has stored")

// unrecorded adds to err, that a folder has no record, what its files are: they hold the memory of
// a pool (errUnrecorded), or the pool was never finished.
func unrecorded(d *local.Data, err error) error {
	for _, name := range d.Files() {
		if holds, _ := pmem.Holds(name); holds { // what cannot be read may be worth something, too
			return fmt.Errorf("%w: %w", err, errUnrecorded)
		}
	}
	return fmt.Errorf("%w: the making of its pool was cut off", err)
}

func explainData(err error) error {
	return workloads.Explain(err, []workloads.Hint{
		{Of: of(errUnrecorded), Say: "put a copy of the record back, which has the nodes' addresses and the size of " +
			"their memory; for another pool name another folder"},
		{Of: of(local.ErrData), Say: "remove it, or name another folder"},
		{Of: of(local.ErrVersion), Say: "use the farkv that made it, or name another folder"},
		{Of: of(local.ErrRecord),
			Say: "put a copy of it back that is whole: without it the pool cannot be brought back"},
		{Of: of(local.ErrFolder),
			Say: "name a folder of yours that only you may write to, or one that is not there yet"},
	})
}

// backTime bounds how long nodes that were started again may take to form the pool: they connect to
// each other, and ask each other for leases.
const backTime = 20 * time.Second

// bringBack starts the nodes of a pool again.
func (s Starter) bringBack(ctx context.Context, name string, data *local.Data) (*Made, error) {
	s.Power = s.Power || data.Power // what was once promised is kept
	nodes := localNodes{Starter: s, data: data, n: len(data.Addresses), memory: data.Memory}
	made, err := nodes.up(ctx, name, data.Store, func(addr string, all []string) (*stores.Pool, error) {
		ctx, cancel := context.WithTimeout(ctx, backTime)
		defer cancel()
		pool, err := reopen(ctx, addr)
		if err == nil && s.Power != data.Power {
			data.Power = s.Power
			if err = data.Made(all); err != nil {
				pool.Close()
			}
		}
		return pool, err
	})
	switch {
	case errors.Is(err, rdma.ErrNoPool):
		return nil, fmt.Errorf("up --pmem %s: its nodes are in no pool any more, since that was removed: %w "+
			"(hint: remove the folder)", data.Folder(), err)
	case err != nil:
		return nil, fmt.Errorf("bring %s back from %s, which stays as it is: %w", name, data.Folder(), err)
	}
	made.Back = true
	return made, nil
}

// reopen opens a pool as soon as its nodes agree.
func reopen(ctx context.Context, addr string) (*stores.Pool, error) {
	for {
		pool, err := stores.Open(addr)
		if !errors.Is(err, rdma.ErrNodeDown) && !errors.Is(err, rdma.ErrUnreachable) &&
			!errors.Is(err, rdma.ErrTimeout) {
			return pool, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// copiedAnew begins the text of an event with the replicas that differed from others when servers
// began.
const copiedAnew = "damaged, copied anew: "

// repairedSince returns the replicas of a pool that were damaged and copied from others since a
// time. "": there were none, or the pool keeps no events.
func repairedSince(p *stores.Pool, since time.Time) string {
	all, err := keptEvents(p)
	if err != nil {
		return ""
	}
	var found []string
	for _, e := range all {
		if _, replicas, ok := strings.Cut(e.Text, copiedAnew); ok && e.At.After(since) {
			found = append(found, replicas)
		}
	}
	return strings.Join(found, ", ")
}

// MayKeep returns why Down cannot keep the files of a pool. nil: Down keeps them, unless told to
// purge.
func MayKeep(pool string) error {
	if !strings.Contains(pool, ":") {
		switch p, err := local.Open(pool); {
		case err != nil && !errors.Is(err, local.ErrNoPool) && !errors.Is(err, local.ErrName):
			return explainStarted(err, pool)
		case err == nil && p.Data != "":
			return nil
		}
	}
	return workloads.Usagef("down %s: --keep is for a NAME whose nodes 'farkv up --pmem' started: of another pool "+
		"nothing is kept", pool)
}

// mayPurge returns an error when purge is set and the pool has no files to remove.
func mayPurge(p *local.Pool, purge bool) error {
	if purge && p.Data == "" {
		return workloads.Usagef("down %s: --purge is for a pool whose nodes 'farkv up --pmem' started", p.Name)
	}
	return nil
}
