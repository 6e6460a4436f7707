package client

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// shutting is a fabric with telemetry that opens no endpoint, as one that is being closed.
type shutting struct{ rdma.Fabric }

func (shutting) Geometry() rdma.Geometry            { return rdma.Geometry{Nodes: 1, Telemetry: 1} }
func (shutting) Open(string) (rdma.Endpoint, error) { return nil, rdma.ErrClosed }

type silent struct{}

func (silent) Tell(*telemetry.Process)  {}
func (silent) Tick(time.Duration, bool) {}

// TestPublishToClosed: a report to a pool that is being closed fails, and so does the next one.
func TestPublishToClosed(t *testing.T) {
	p := newPublisher(shutting{}, "", silent{})
	p.publish()
	p.publish()
	p.leave()
}
