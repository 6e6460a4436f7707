package ops

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// LeaseOf returns for how long a node may still execute verbs. false: the node needs no lease,
// because it is in no pool, or is the only node of its pool.
func LeaseOf(i *fabrics.NodeInfo) (left time.Duration, needs bool) {
	if i.Pool == nil || i.Lease == rdma.Forever {
		return 0, false
	}
	return i.Lease, true
}

// Inspect asks the memory nodes of an address for their state. An address without nodes has an
// empty result. f is the pool, if this process has it open, or nil.
func Inspect(ctx context.Context, addr string, f rdma.Fabric) ([]Served, error) {
	a, err := fabrics.Parse(addr)
	if err != nil || !a.Remote() {
		return nil, err
	}
	infos, errs, err := fabrics.Inspect(ctx, a, f)
	if err != nil {
		return nil, fmt.Errorf("look at the nodes of %s: %w", addr, err)
	}
	main, known := mainPool(infos)
	var all []Served
	for n, i := range infos {
		s := Served{Address: i.Address, Reachable: errs[n] == nil}
		if errs[n] != nil {
			s.Problem = errs[n].Error()
		} else {
			left, _ := LeaseOf(&i)
			s.Lease, s.Epoch, s.Expelled, s.Connected = left.Seconds(), i.Epoch, i.Expelled, i.Processes
			s.Commit, s.AuthFailures, s.RefusedRoom = i.Commit, i.Stats.AuthFailures, i.Stats.RefusedRoom
			s.RefusedOther = i.Stats.Refused - i.Stats.RefusedRoom
			s.Counts, s.PMem = countsOf(&i.Stats), i.PMem
			s.Survives, s.SurvivesBy, s.Server = i.Survives, i.SurvivesBy, i.Server
			if i.Fault != nil {
				s.Broken, s.BrokenFor = i.Fault.String(), i.Fault.For.Seconds()
			}
			s.Offers, s.InPool, s.Incarnation = i.Memory, i.Pool != nil && i.Pool.ID == infos[main].Pool.ID,
				fmt.Sprintf("%016x", i.Incarnation)
			if p := i.Pool; p != nil && !slices.Contains([]int{-1, p.Index}, slices.Index(p.Addresses, i.Address)) {
				s.Reachable = false // clients find another node than the pool has there
				s.Problem = fmt.Sprintf("what answers there is node %d of the pool: was it started with that one's "+
					"--pmem?", p.Index)
			}
		}
		all = append(all, s)
	}
	all = inOrder(infos, all)
	for n := range all {
		all[n].Voter = known && n < infos[main].Pool.Voters()
	}
	return all, nil
}

// inOrder sorts nodes by their numbers in the pool. The order in the address may differ.
func inOrder(infos []fabrics.NodeInfo, all []Served) []Served {
	var sorted []Served
	for _, i := range infos {
		if i.Pool == nil || len(i.Pool.Addresses) != len(all) {
			continue
		}
		for _, addr := range i.Pool.Addresses {
			if at := slices.IndexFunc(all, func(s Served) bool { return s.Address == addr }); at >= 0 {
				sorted = append(sorted, all[at])
			}
		}
		break
	}
	if len(sorted) != len(all) { // they were named otherwise when the pool was made
		return all
	}
	return sorted
}

// countsOf are the verbs that a node executed.
func countsOf(s *fabrics.NodeStats) *telemetry.NodeCounts {
	return &telemetry.NodeCounts{Reads: s.Reads, Writes: s.Writes, Atomics: s.Atomics, Calls: s.Calls,
		BytesRead: s.BytesRead, BytesWrote: s.BytesWrote}
}
