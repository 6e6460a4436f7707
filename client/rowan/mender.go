package rowan

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// hung is for how long a server answers no question before its node is expelled: a machine that is
// busy may keep a process waiting for seconds. It is not for servers that end by themselves, which
// say so.
const hung = 10 * time.Second

// NewMender returns what makes the mender of a pool's master, for one candidate: the manager of its
// configuration, which is in configs (sections 4.5 and 4.6). When a node dies others serve its
// shards, and have replicas again. When one has more to do than others shards move.
func NewMender(configs rdma.Configs) cluster.NewMender {
	return newMender(configs, cm.Options{Hung: hung})
}

// NewRestlessMender is NewMender for small pools in which faults are looked for: shards move after
// a few requests, and replicas that differ are a fault.
func NewRestlessMender(configs rdma.Configs) cluster.NewMender {
	return newMender(configs, cm.Options{
		Hung: hung, Period: restless, Plan: shards.PlanOptions{Least: 1, Pause: 1}, Intact: true,
	})
}

// restless is the period of loads there: a run's clients make some requests in it.
const restless = time.Millisecond

func newMender(configs rdma.Configs, o cm.Options) cluster.NewMender {
	manager := cm.NewMender(configs, o)
	return func(ep rdma.Endpoint) (cluster.Mender, error) {
		if _, _, err := readLayout(ep); err != nil {
			return nil, fmt.Errorf("mend a pool with servers: %w", err)
		}
		return manager(ep)
	}
}
