// Package ibverbs is the fabric of RNICs, on libibverbs: InfiniBand, RoCE v2, and soft-RoCE where
// there is no hardware. It is built with the tag ibverbs; without it an address says how.
//
// A pool is one of package tcp with devices in its nodes. Over TCP go its view, master and
// identities, leases, tokens and two-sided calls, and the exchange of queue pairs; verbs go from a
// worker's queue pair (reliable connection) to that of the node. The node's process does not see
// them.
//
// # Fencing off
//
// A queue pair belongs to one life of a client and to the epoch that it has joined. A node that is
// told to fence off either destroys the queue pairs concerned before it answers, so that nothing
// that was posted to them can land any more. The worker finds its verbs unanswered, asks the node
// why, and says so: rdma.ErrStale, rdma.ErrRevoked. The TCP connection of a process takes its queue
// pairs with it, and a new queue pair of a worker is made only when its last one is gone: behind it
// nothing of that can land.
//
// A device goes on serving memory of a process that is stopped, cut off from its peers, or
// expelled. So a worker takes the result of a verb only while the node is known to serve: it tells
// its clients over TCP, a few times in each lease, for how long yet it has the right to, and they
// count from before they asked. What completes later is held back until the node says so again, or
// is lost with the connection. A node that is expelled says so no more.
//
// # Messages
//
// A mailbox is a shared receive queue of its worker's device, with as many buffers as its options
// say. Its number is with its nodes, as over TCP. A sender has a queue pair to it, apart from those
// to nodes, and a SEND is the device's:
//
//  1. The sender makes its queue pair, and offers it to the node by way of which it sends. The node
//     refuses a worker that may not post, and passes the offer on to the mailbox's process.
//  2. There a goroutine ends the connection that the sender had before, makes the other queue pair,
//     and answers, by way of the node. The worker is not asked: it may be busy.
//  3. The sender connects its end, and posts. It relies on the node's word for its right to, as for
//     verbs.
//  4. The message is in a buffer when its SEND completes. Both are taken while the node is known to
//     serve, and lost when the process's connection to it breaks before.
//  5. A node that fences senders off has the mailboxes' processes end the queue pairs concerned
//     before it answers. A process that does not say so in time is cut off, and looks at nothing
//     that comes later than a lease behind that.
//
// A sender that dies between 1 and 3 leaves a queue pair on which nothing comes, until its identity
// meets the mailbox again, or is fenced off. A receiver that dies leaves a queue pair that answers
// nothing: the sender asks the node, and its SENDs in flight end in rdma.ErrNodeDown, since they
// may have arrived; a mailbox that is closed says how many did. A node that dies takes the
// connections that were made by way of it with it, once the processes at their ends hear of that,
// or have heard nothing of it for a lease: until then messages arrive.
//
// A device may lose the buffer that a message of several packets began to fill when its sender
// dies: see mailbox.reclaim.
//
// There are no credits: a receive queue without a buffer says "not ready", and after some 4 ms (on
// soft-RoCE ten times as long) the SEND ends in rdma.ErrBoxFull. The device gives up its queue pair
// with that. What was posted behind has not arrived, and goes over another one, in order. A SEND
// waits for the worker's earlier verbs to the node, which its queue pair has no part in; later ones
// may pass it. What it gathers is READ from the node first, since another process's memory is out
// of reach for the worker's device: that costs a round trip on the same machine.
//
// # Rings
//
// A ring is at the device of its node, which alone reaches the node's memory; frames over TCP open
// it, post its buffers and ask how far it is, as without a device. A plain receive queue takes one
// buffer a message, and fails a message that is longer. So a ring has a stream for each size of a
// place (64 to 1024 bytes, and the MTU): a shared receive queue, to which the node posts the places
// of that stream's buffers, in order.
//
//  1. A sender connects a queue pair to a stream when it first appends an entry of that length.
//     From then on the stream has buffers: it takes the next that the worker posted when it has
//     none, or when the device has all places of its last.
//  2. An APPEND is a SEND for each block and a READ of a word behind them, one chain and one
//     doorbell, if there is room for all. The READ relies on the queue pair's order: when it
//     completes, what was sent is in memory. A block is one packet: it is in its place, or it is
//     not, and when its sender dies nothing is half received.
//  3. A goroutine of the node takes the completions of receives and posts more places; so does each
//     question to the ring. The queue has room for the completions of all places that the device
//     has. A place is used when its completion came, with which the device has done with it: so a
//     ring counts, exactly, what is settled.
//  4. Without a place the SEND ends in rdma.ErrRingDry, as one to a full mailbox; the rest of its
//     entry is not sent, and what was posted behind it goes over another queue pair, in order.
//  5. A node that fences a sender off, or ends a ring, destroys the queue pairs before it answers,
//     as those to its memory. It has counted what came over each, and tells senders: so they know
//     when nothing of theirs has landed.
//
// A sender that dies behind 1 leaves a stream that has buffers, up to two, and nothing comes; in 2,
// blocks that are whole, without the rest of their entry. Its queue pair goes with its process's
// TCP connection. A receiver that dies takes the ring with its own; a node that dies takes all. A
// place without a completion would keep its buffer open for ever: that devices lose none
// for a message of one packet is relied on. RNICs' queues of several packets a buffer (mlx5, DEVX),
// which would make one stream of all sizes, are not used.
//
// # Order
//
// A fence is the device's, but on soft-RoCE, of which the queue pairs come to stand still at fences
// now and then: there the worker posts what is fenced when the READs and atomics in front of it are
// over, which takes as long, and a doorbell more. A device that tells nothing for longer than it
// repeats what is not answered is given up, and with it the queue pair.
//
// # Atomics
//
// A device's atomics are not atomic with a processor's. A node's procedures change words through
// the device, too, and no pool is used over devices and over TCP at a time. Where a device has no
// masked compare and swap, it is made of plain ones, which guess the bits that are not compared:
// right, but each wrong guess costs another round trip.
package ibverbs
