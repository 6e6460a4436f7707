// Package tcp is the fabric of memory nodes that are processes, over any network: a software RNIC.
// A Node serves registered memory; a Fabric is a process's way to the nodes of a pool. Verbs are
// executed in the node's process, word by word, in the order in which they were posted; a write to
// a connection carries what all workers have ready, both ways.
//
// # Where the pool's view is kept
//
// The view, the store's configuration, the master's role and the clients' identities are records of
// a board (package board): kept by a majority of the nodes, or by another service, such as Consul.
// Without the board nothing of them changes, while verbs go on.
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
// read token, which is given to more programs than the other, have a half of it, and of the places
// for connections; one that takes none of its answers is ended within a second, and its place stays
// taken for a while. Leases wait for none of this: peers' connections are not counted, and what is
// locked for them is locked for moments only.
//
// # Messages
//
// A worker opens its mailbox at nodes, over the connections of its process. A SEND is a verb at the
// node by way of which it goes: there a buffer of the mailbox is taken for the message, what it
// gathers is read from the node's memory, and the message is forwarded over the receiver's
// connection before the SEND is answered. The node counts buffers: the receiver says in all that it
// sends how many it has released, and in a frame of its own when the node may take half of them for
// used that are not. So a mailbox has its buffers for each node, and one that is full refuses at
// the node. One that is not read refuses, too, once a mebibyte of its connection's mail waits. Only
// a goroutine of its own waits for a slow receiver.
//
// A mailbox goes with the connection that it was opened over, and is opened anew when that is made
// again. What the node had taken for it, and had not arrived, is lost then, though its SEND had
// succeeded; so is what waits at a node that dies. Fencing a worker off closes its mailbox. Where
// verbs go over a device messages do, too: nodes only let their senders and receivers meet, and
// part (Host).
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
// A store's server is a worker of a Fabric that is beside a node of its process (Node.Beside). Its
// verbs at that node, its rings and the messages that come by way of the node are function calls:
// see beside.go. They obey the same rules, and other nodes are reached as from anywhere. Nodes know
// such a process as a part of the pool, which does not keep that in use.
//
// # What is not here
//
// The nodes that have a voice do not change in a pool's life. Without TLS an attacker that can
// change packets can do anything. One that can only read them sees data, but not the token.
package tcp
