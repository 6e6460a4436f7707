package fabrics

import (
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Packets are what a port of an RDMA device sent and received since it came up, for all processes.
type Packets struct{ Sent, Received uint64 }

// PacketsOf returns what the device under an open pool counted; false: there is none, or it does
// not count. It takes some milliseconds: the kernel looks at a device's counters only so often.
func PacketsOf(f rdma.Fabric) (Packets, bool) {
	_, device, port, ok := DeviceOf(f)
	if !ok {
		return Packets{}, false
	}
	return packetsAt(os.DirFS("/sys/class/infiniband"), device, port)
}

// mostStale bounds for how long counters may be old, whatever the device says; usual are 10 ms.
const mostStale = 100 * time.Millisecond

// packetsAt reads the counters of a port: those of soft-RoCE, or else those that InfiniBand has for
// each port.
func packetsAt(root fs.FS, device string, port int) (Packets, bool) {
	at := fmt.Sprintf("%s/ports/%d/", device, port)
	read := func(name string) (uint64, bool) { return (&reader{root: root}).number(at + name) }
	if stale, ok := read("hw_counters/lifespan"); ok {
		time.Sleep(min(time.Duration(stale+1)*time.Millisecond, mostStale))
	}
	for _, names := range [][2]string{
		{"hw_counters/sent_pkts", "hw_counters/rcvd_pkts"}, {"counters/port_xmit_packets", "counters/port_rcv_packets"},
	} {
		sent, ok := read(names[0])
		received, also := read(names[1])
		if ok && also {
			return Packets{sent, received}, true
		}
	}
	return Packets{}, false
}
