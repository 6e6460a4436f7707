package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/telemetry"
)

// pmemEvery is how often a memory node reads the counters of its machine's persistent memory, which
// starts a process.
const pmemEvery = 5 * time.Second

// modelPMem returns modules that a model has under the memory of a node, those of Rowan's servers
// (6.1), and what they counted.
func modelPMem() (*pmem.Device, func() *telemetry.PMem) {
	d := pmem.NewDevice(pmem.Testbed())
	return d, func() *telemetry.PMem { return &telemetry.PMem{DIMMs: d.Counters(), Model: true} }
}

// pmemSampler knows what the persistent memory of this machine counted last.
type pmemSampler struct {
	tool pmem.IPMCTL
	last atomic.Pointer[telemetry.PMem]
}

// sample reads the counters until ctx ends. Where there are no modules, or nothing to read them
// with, it reads once. A failure is kept until a reading succeeds, and stops nothing else.
func (s *pmemSampler) sample(ctx context.Context) {
	tick := time.NewTicker(pmemEvery)
	defer tick.Stop()
	for {
		all, err := s.tool.Read(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.last.Store(&telemetry.PMem{Problem: strings.TrimPrefix(err.Error(), "read ipmctl's counters: ")})
		default:
			s.last.Store(&telemetry.PMem{DIMMs: all})
		}
		if errors.Is(err, pmem.ErrNoTool) || errors.Is(err, pmem.ErrNoModules) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
