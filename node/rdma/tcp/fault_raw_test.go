package tcp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// TestFaultsOfOthers: a node with verbs that go over a device cannot slow them; what a later
// version wants is refused, as a message is that this version does not know.
func TestFaultsOfOthers(t *testing.T) {
	n := newRawNode(t, Config{Device: newFakeDevice()})
	o := Options{Addresses: []string{n.Addr()}, Fabric: "fake"}
	err := Break(t.Context(), o, 0, Fault{ID: "slow", Slow: time.Millisecond, For: time.Minute})
	if !errors.Is(err, rdma.ErrNotSupported) || !strings.Contains(err.Error(), "past the node's process") {
		t.Errorf("a device was slowed: %v", err)
	}
	id := n.fabric.record.ID
	h := hello{Purpose: forControl, Process: newID(), Pool: id}
	for what, m := range map[string]*message{
		"a later fault": {Do: doFault, Pool: id, Fault: &Fault{Version: faultVersion + 1, ID: "x", Clients: true,
			For: time.Minute}},
		"a later message": {Do: "something", Pool: id},
		"no fault":        {Do: doFault, Pool: id},
		"of another pool": {Do: doFault, Pool: "another", Fault: &Fault{Version: faultVersion, ID: "x", Clients: true,
			For: time.Minute}},
		"about no process": {Do: doFault},
	} {
		_, err := ask(t.Context(), n.Addr(), Security{Admin: true}, h, m)
		want := map[string]error{"a later fault": rdma.ErrNotSupported, "a later message": rdma.ErrNotSupported,
			"no fault": errFailed}[what]
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
