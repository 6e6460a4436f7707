// Package ibverbs is the fabric of RNICs, on libibverbs: InfiniBand, RoCE v2, and soft-RoCE where there is no hardware. It is
// built with the tag ibverbs; without it an address says how.
//
// A pool is one of package tcp whose nodes have devices. Over TCP go its view, master and identities, leases, tokens and two-sided
// calls, and the exchange of queue pairs; verbs go from a worker's queue pair (reliable connection) to that of the node, whose
// process does not see them.
//
// # Fencing off
//
// A queue pair belongs to one life of a client and to the epoch that it has joined. A node that is told to fence off either
// destroys the queue pairs concerned before it answers, so that nothing that was posted to them can land any more. The worker
// finds its verbs unanswered, asks the node why, and says so: rdma.ErrStale, rdma.ErrRevoked. The TCP connection of a process
// takes its queue pairs with it, and a new queue pair of a worker is made only when its last one is gone: behind it nothing of
// that can land.
//
// A device goes on serving memory whose process is stopped, cut off from its peers, or expelled. So a worker takes the result
// of a verb only while the node is known to serve: it tells its clients over TCP, a few times in each lease, for how long yet it
// has the right to, and they count from before they asked. What completes later is held back until the node says so again, or
// is lost with the connection. A node that is expelled says so no more.
//
// # Order
//
// A fence is the device's, but on soft-RoCE, whose queue pairs come to stand still at fences now and then: there the worker posts
// what is fenced when the READs and atomics in front of it are over, which takes as long, and a doorbell more. A device that tells
// nothing for longer than it repeats what is not answered is given up, and with it the queue pair.
//
// # Atomics
//
// A device's atomics are not atomic with a processor's. A node's procedures change words through the device, too, and no pool
// is used over devices and over TCP at a time. Where a device has no masked compare and swap, it is made of plain ones, which guess
// the bits that are not compared: right, but each wrong guess costs another round trip.
package ibverbs
