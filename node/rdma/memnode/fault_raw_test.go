package memnode

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/transport"
)

// TestFaultsOfOthers: a node with verbs that go over a device cannot slow them; what a later
// version wants is refused, as a message is that this version does not know.
func TestFaultsOfOthers(t *testing.T) {
	n := newRawNode(t, Config{Device: newFakeDevice()})
	o := control.Options{Addresses: []string{n.Addr()}, Fabric: "fake"}
	err := control.Break(t.Context(), o, 0, control.Fault{ID: "slow", Slow: time.Millisecond, For: time.Minute})
	if !errors.Is(err, rdma.ErrNotSupported) || !strings.Contains(err.Error(), "past the node's process") {
		t.Errorf("a device was slowed: %v", err)
	}
	id := n.fabric.Record().ID
	h := transport.Hello{Purpose: transport.ForControl, Process: transport.NewID(), Pool: id}
	for what, m := range map[string]*control.Message{
		"a later fault": {Do: control.DoFault, Pool: id, Fault: &control.Fault{Version: control.FaultVersion + 1,
			ID: "x", Clients: true,
			For: time.Minute}},
		"a later message": {Do: "something", Pool: id},
		"no fault":        {Do: control.DoFault, Pool: id},
		"of another pool": {Do: control.DoFault, Pool: "another",
			Fault: &control.Fault{Version: control.FaultVersion, ID: "x", Clients: true,
				For: time.Minute}},
		"about no process": {Do: control.DoFault},
	} {
		_, err := control.Ask(t.Context(), n.Addr(), transport.Security{Admin: true}, h, m)
		want := map[string]error{"a later fault": rdma.ErrNotSupported, "a later message": rdma.ErrNotSupported,
			"no fault": transport.ErrFailed}[what]
		if want == nil {
			want = rdma.ErrAccess
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if f := n.Info().Fault; f != nil {
		t.Errorf("it suffers %v", f)
	}
}
