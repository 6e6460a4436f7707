package simulate

import (
	"errors"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads"
)

// Bare runs a task in virtual time, as the only client of one empty memory node on the hardware of
// a profile. The same seed gives the task the same times. The error is a workloads.UsageError when
// there is no such profile, the error of the task, or the reason why the simulation broke off.
func Bare(profile string, memory, seed uint64, task func(rdma.Fabric, rdma.Endpoint) error) error {
	p, err := sim.LookupProfile(profile)
	if err != nil {
		return workloads.Usagef("%v", err)
	}
	o := p.Options(seed, 1)
	o.Memory, o.Clients, o.Handler = memory, 1, node.Serve
	s := sim.New(o)
	defer s.Close()
	var failed error
	s.Go(ClientName(0), func(ep rdma.Endpoint) { failed = task(s, ep) })
	err = s.Run()
	return errors.Join(failed, err)
}
