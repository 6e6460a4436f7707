// Package memnode is the process of a memory node. A Node serves registered memory: it lets
// connections of package transport in, executes the verbs that come over them, grants and keeps the
// leases by which it may serve, keeps the registers of the pool's membership, and lets devices
// serve its memory.
//
// # Fencing off
//
// Each frame of verbs names its client, the life of that identity, and the epoch that the client
// has joined. Fence and Revoke tell every node what to refuse from now on. The node drains what it
// is executing, and answers then. So what was sent before, and is still on its way, lands nowhere.
// A node that does not answer has to be expelled first: then a majority of the nodes grants it no
// lease any more. A node executes verbs only while it holds leases of a majority, and checks that
// again before it answers. So an expelled node answers no client once the lease that it may have is
// over, be it dead, cut off, or stopped in the midst of a verb.
//
// Leases count on the clock of the node that asked for them, from before it asked. A process that
// expels a node waits a seventh longer, since clocks are not equally fast. The clock goes on while
// a machine is suspended. A clock that stands still, as that of a virtual machine that is paused
// and not told so, is not made up for. A node that has lost its lease without an expulsion holds
// verbs back until it has one again.
//
// # What fails how
//
// A connection that breaks, or on which nothing comes for a second though the node was asked, ends
// the verbs in flight in rdma.ErrNodeDown: they may have landed. The next connection of the process
// is let in only when the node has drained the last one: behind it none of them can land any more.
// A node's process that is started anew has no memory of the pool: it belongs to none, and verbs to
// it go on ending in rdma.ErrNodeDown, until the pool's master has expelled it. One with a
// Config.Region remembers, and goes on where it was, unless it was expelled. A pool lives as long
// as a majority of its nodes does, of the first seven if there are more; witnesses, which hold no
// memory, count.
//
// # What a node bears
//
// Memory for answers is bounded for all connections together: see outputs. Connections with the
// read token, which is given to more programs than the other, have half of it, and at most half of
// the places for connections; one that takes none of its answers is ended within a second, and its
// place stays taken for a while. Leases wait for none of this: peers' connections are not counted,
// and what is locked for them is locked for moments only. Tests: TestPlacesApart here;
// TestReadToken, TestSlowReaders and TestFlood in package tcp.
//
// # Rings
//
// A ring is at its node: its worker opens it, posts buffers and counts by frames of their own, and
// an APPEND is a verb that the node executes. So it lands in the order of its connection, and a
// fence drains it as any verb. A block lands while the ring is locked, so that none is in flight to
// a buffer that counts as settled. Of an entry of several blocks the later ones land when others
// have come in between, as packets of several senders do, and all before the answers to what was
// received together are sent: as the answer to a WRITE, that to an APPEND waits until its entry is
// as durable as the node's memory can make it.
//
// A ring goes with the connection that it was opened over, and is not opened anew when that is made
// again: its worker learns of it by the next Post or Count.
//
// # Beside a node
//
// A store's server is a worker of a fabric that is beside a node of its process (Node.Beside). Its
// verbs at that node, its rings and the messages that come by way of the node are function calls:
// see beside.go. They obey the same rules, and other nodes are reached as from anywhere. Nodes know
// such a process as a part of the pool, which does not keep that in use.
package memnode
