package sim

import (
	"bytes"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Config returns the store's configuration.
func (s *Sim) Config() (c rdma.Config, err error) {
	err = s.control(func() { c = s.config })
	return rdma.Config{Version: c.Version, Data: bytes.Clone(c.Data)}, err
}

// SwapConfig replaces the store's configuration.
func (s *Sim) SwapConfig(r rdma.Role, version uint64, data []byte) (ok bool, err error) {
	if err := rdma.CheckConfig(data); err != nil {
		return false, err
	}
	data = bytes.Clone(data)
	lost := s.control(func() {
		if r.Epoch == 0 || r.Epoch != s.tenures {
			err = fmt.Errorf("replace the configuration as master of epoch %d, and that of epoch %d has begun: %w",
				r.Epoch, s.tenures, rdma.ErrStale)
			return
		}
		if ok = s.config.Version == version; ok {
			s.config = rdma.Config{Version: version + 1, Data: data}
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
func (s *Sim) AwaitConfig(version uint64, within time.Duration) (rdma.Config, error) {
	for until := s.Now() + within; ; {
		c, err := s.Config()
		switch {
		case err != nil || c.Version != version:
			return c, err
		case s.Now() >= until || s.current == nil:
			return rdma.Config{}, fmt.Errorf("wait for a configuration behind version %d: %w", version, rdma.ErrTimeout)
		}
		s.current.ep.Sleep(configPace)
	}
}
