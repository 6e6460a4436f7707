package fabrics

import (
	"testing"
	"testing/fstest"

	"github.com/farkv/farkv/node/rdma"
)

func TestPackets(t *testing.T) {
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	root := fstest.MapFS{
		"rxe0/ports/1/hw_counters/lifespan": text("10\n"), "rxe0/ports/1/hw_counters/sent_pkts": text("12\n"),
		"rxe0/ports/1/hw_counters/rcvd_pkts":         text("34\n"),
		"mlx5_0/ports/2/hw_counters/out_of_sequence": text("1\n"),
		"mlx5_0/ports/2/counters/port_xmit_packets":  text("56\n"),
		"mlx5_0/ports/2/counters/port_rcv_packets":   text("78\n"), "odd/ports/1/hw_counters/sent_pkts": text("many"),
		"odd/ports/1/hw_counters/rcvd_pkts": text("1"),
	}
	for _, c := range []struct {
		device string
		port   int
		want   Packets
		ok     bool
	}{{"rxe0", 1, Packets{12, 34}, true}, {"mlx5_0", 2, Packets{56, 78}, true}, {"rxe0", 2, Packets{}, false}, {"odd",
		1, Packets{}, false}} {
		if got, ok := packetsAt(root, c.device, c.port); got != c.want || ok != c.ok {
			t.Errorf("%s port %d: %+v, %v", c.device, c.port, got, ok)
		}
	}
	f, err := Create("mem:", small, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, ok := PacketsOf(f); ok {
		t.Error("memory has packets")
	}
	if _, ok := LibraryCalls(f, rdma.Endpoint(nil)); ok {
		t.Error("memory calls libibverbs")
	}
}
