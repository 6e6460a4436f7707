package rowan

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// hung is for how long a server may leave all questions unanswered before its node is expelled: a
// busy machine may delay a process for seconds. A server that ends by itself says so, and is not
// waited for.
const hung = 10 * time.Second

// NewRecoverer returns a function that makes the recoverer of a pool's master, for one candidate.
// The recoverer is the manager of the pool's configuration in configs (sections 4.5 and 4.6):
// when a node dies other servers serve its shards, and these get new replicas; when a server has
// more load than others, shards move.
func NewRecoverer(configs rdma.Configs) cluster.NewRecoverer {
	return newRecoverer(configs, cm.Options{Hung: hung})
}

// NewRestlessRecoverer is NewRecoverer for tests with small pools: shards move after a few
// requests, and replicas that differ are an error.
func NewRestlessRecoverer(configs rdma.Configs) cluster.NewRecoverer {
	return newRecoverer(configs, cm.Options{
		Hung: hung, Period: restless, Plan: shards.PlanOptions{Least: 1, Pause: 1}, Intact: true,
	})
}

// restless is the period of loads there. A test's clients make some requests in it.
const restless = time.Millisecond

func newRecoverer(configs rdma.Configs, o cm.Options) cluster.NewRecoverer {
	// It works by the registers alone, so any candidate can go on with what another began.
	manager := cm.NewRecoverer(configs, o)
	return func(ep rdma.Endpoint) (cluster.Recoverer, error) {
		if _, _, err := readLayout(ep); err != nil {
			return nil, fmt.Errorf("mend a pool with servers: %w", err)
		}
		return manager(ep)
	}
}
