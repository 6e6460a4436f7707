package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/workloads"
)

// Made is a new pool.
type Made struct {
	*State
	Variant string `json:"variant,omitempty"` // the store that was asked for, where the pool's goes by another name
	Warning string `json:"warning,omitempty"` // why the pool may not last
	Limit   string `json:"limit,omitempty"`   // stores.Kind.Limit
	Kept    string `json:"kept,omitempty"`    // the folder of what its nodes remember
	Back    bool   `json:"back,omitempty"`    // it was there before
	// Repaired has the replicas that were found damaged when the pool was brought back. They are
	// copied anew.
	Repaired string `json:"repaired,omitempty"`
}

// Up makes a pool that stays until Down.
func Up(addr, store string, p stores.Params) (made *Made, err error) {
	if fabrics.Private(addr) {
		name := "shm:" + fabrics.UsualName
		if k, err := stores.Lookup(store); err == nil && k.Serve != nil { // which shared memory has no place for
			name = fabrics.UsualName
		}
		return nil, workloads.Usagef("up %s: a mem: pool would end with this command; use a name, such as %s",
			addr, name)
	}
	folder, free, roomErr := fabrics.Room() // what is wrong with the folder, Create says better
	pool, err := stores.Create(addr, store, p)
	if err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			err = fmt.Errorf("%w: %s has %s free, and not even an empty pool fits", err, folder, format.Size(free))
		}
		return nil, explainShape(err, addr)
	}
	defer pool.Close()
	if a, wrong := fabrics.Parse(addr); wrong == nil && a.Remote() {
		if _, err := awaitServers(context.Background(), pool, false); err != nil {
			return nil, fmt.Errorf("up %s: the pool is made, and not served: %w", addr, err)
		}
	}
	made, err = madeOf(pool, store)
	if err != nil {
		return nil, err
	}
	if a, bad := fabrics.Parse(addr); roomErr == nil && bad == nil && !a.Remote() {
		made.warn(tight(uint64(pool.Fabric.Nodes())*pool.Fabric.Size(), free, folder))
	}
	made.warn(cramped(pool.Kind, p))
	return made, nil
}

// explainShape adds hints to the error of a pool that could not be made. When the pool is full
// although the machine has memory left, the parameters contradict each other.
func explainShape(err error, addr string) error {
	a, bad := fabrics.Parse(addr)
	return workloads.Explain(err, append([]workloads.Hint{
		{Of: of(rdma.ErrFull), Unless: bad != nil || !a.Remote(),
			Say: "lower --records, --memory or --nodes, or start larger or further nodes with 'farkv node'"},
		// of no pool yet: there is nothing to recover
		{Of: of(rdma.ErrNodeDown), Unless: errors.Is(err, fabrics.ErrTLS),
			Say: fmt.Sprintf("'farkv node' serves memory there; 'farkv status %s' shows which nodes answer", addr)},
		{Of: of(rdma.ErrFull), Unless: errors.As(err, new(syscall.Errno)), Misuse: true,
			Say: "raise --memory, or lower --records or --clients"},
	}, Hints(addr)...))
}

// tight returns the warning for a pool that may need more memory than is free. A pool takes memory
// only as it uses it.
func tight(need, free uint64, folder string) string {
	if need <= free {
		return ""
	}
	return fmt.Sprintf("the pool may grow to %s, and %s has %s free: writes will fail when that is used up",
		format.Size(need), folder, format.Size(free))
}

// cramped returns a warning when the memory of a pool is too small for its records.
func cramped(k *stores.Kind, p stores.Params) string {
	if k.Room == nil {
		return ""
	}
	p = k.Size(p)
	records, whole := k.Room(p)
	if p.Memory >= whole {
		return ""
	}
	return fmt.Sprintf("%s a node have room for about %s of %s records of %s bytes: writes fail when they are full "+
		"(hint: %s a node have room for all)", format.Size(p.Memory), format.Count(records), format.Count(p.Records),
		format.Count(p.PairBytes), format.Size(whole))
}

// warn adds a warning; "": there is none.
func (m *Made) warn(why string) {
	if m.Warning != "" && why != "" {
		why = m.Warning + "; " + why
	}
	m.Warning = cmp.Or(why, m.Warning)
}

// Print implements Result.
func (m *Made) Print(w io.Writer) {
	if m.Name == "" {
		fmt.Fprintf(w, "made %s\n", m.Pool)
	} else {
		did := "made"
		if m.Back {
			did = "brought back"
		}
		fmt.Fprintf(w, "%s %s, on nodes that run on this machine until 'farkv down %s': %s\n", did, m.Name,
			m.Name, m.Pool)
	}
	if m.Limit != "" {
		fmt.Fprintln(w, m.Limit)
	}
	if m.Kept != "" {
		fmt.Fprintf(w, "%s keeps what its nodes remember, until 'farkv down %s --purge'\n", m.Kept, m.Name)
	}
	if m.Variant != "" {
		fmt.Fprintf(w, "its store is %s; %s is a way to use it, chosen when a program opens it\n", m.Store, m.Variant)
	}
	if m.Repaired != "" {
		fmt.Fprintf(w, "damage was found, and is repaired: copied anew from other replicas: %s\n", m.Repaired)
	}
	if m.Warning != "" {
		fmt.Fprintf(w, "warning: %s\n", m.Warning)
	}
	fmt.Fprintln(w)
	m.State.Print(w)
}
