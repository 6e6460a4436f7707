package rowan

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// hung is how many questions in a row a server leaves unanswered before its node is expelled: masters of farkv ask some
// twenty times a second, and a machine that is busy may keep a process waiting for seconds.
const hung = 200

// NewMender returns what makes the mender of a pool's master, for one candidate: the manager of its configuration,
// which is in configs (section 4.5). When a node dies others serve its shards, and have replicas again.
func NewMender(configs rdma.Configs) cluster.NewMender {
	manager := cm.NewMender(configs, cm.Options{Hung: hung, Period: never})
	return func(ep rdma.Endpoint) (cluster.Mender, error) {
		if _, _, err := readLayout(ep); err != nil {
			return nil, fmt.Errorf("mend a %s pool: %w", kv.Rowan, err)
		}
		return manager(ep)
	}
}

// never is the period after which loads are evened out. A server that has a shard again has old entries of it in its
// memory, until they are cleaned: Check would take them for what it has, as would a cold start.
const never = 100 * 365 * 24 * time.Hour
