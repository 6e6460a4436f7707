package sim

import (
	"bytes"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Config returns the store's configuration.
func (ms *membership) Config() (c rdma.Config, err error) {
	err = ms.sched.control(func() { c = ms.config })
	return rdma.Config{Version: c.Version, Data: bytes.Clone(c.Data)}, err
}

// SwapConfig replaces the store's configuration.
func (ms *membership) SwapConfig(r rdma.Role, version uint64, data []byte) (ok bool, err error) {
	if err := rdma.CheckConfig(data); err != nil {
		return false, err
	}
	data = bytes.Clone(data)
	lost := ms.sched.control(func() {
		if r.Epoch == 0 || r.Epoch != ms.tenures {
			err = fmt.Errorf("replace the configuration as master of epoch %d, and that of epoch %d has begun: %w",
				r.Epoch, ms.tenures, rdma.ErrStale)
			return
		}
		if ok = ms.config.Version == version; ok {
			ms.config = rdma.Config{Version: version + 1, Data: data}
		}
	})
	if lost != nil {
		return false, lost
	}
	return ok, err
}

// configPace is how long a worker that waits for another configuration sleeps between two looks.
const configPace = 20 * time.Microsecond

// AwaitConfig waits for another configuration.
func (ms *membership) AwaitConfig(version uint64, within time.Duration) (rdma.Config, error) {
	for until := ms.clock() + within; ; {
		c, err := ms.Config()
		switch {
		case err != nil || c.Version != version:
			return c, err
		case ms.clock() >= until || ms.sched.current == nil:
			return rdma.Config{}, fmt.Errorf("wait for a configuration behind version %d: %w", version, rdma.ErrTimeout)
		}
		ms.sched.current.ep.Sleep(configPace)
	}
}
