// Package control is what a process has of a pool of memory nodes beside the verbs: the pool's
// making, opening and removal, its view, master and identities, and, for each worker, an identity,
// calls to the nodes' procedures, mailboxes and rings. All of it goes over package transport's
// connections to the nodes (package memnode). A fabric adds the verbs: package tcp over the same
// connections, package ibverbs from device to device.
//
// # Connections
//
// A process has a connection for verbs to each memory node, and one for control to each node,
// witnesses too. A goroutine each keeps them, and makes them again when they break
// (transport.Link.Keep).
//
// The one for control carries Messages. A message that was not answered when its connection broke
// is asked again: a node may execute it twice, and each kind bears that. The one for verbs carries
// frames. They are executed in the order in which they were posted, and at most once. A frame that
// is lost with its connection is not sent again, and its outcome is unknown. What is asked about
// rings, mailboxes and connections from device to device goes over the connection for verbs, too,
// so that it is executed in its place among the verbs.
//
// # What ends what
//
// A connection for verbs that ends takes with it, at the node, the mailboxes, the rings and the
// connections from device to device that were opened over it. The node lets the next one in only
// when these have ended. Workers keep their identities, and the epoch that they have joined.
//
// A fence of an epoch has nodes refuse what workers of earlier epochs ask for, until they join. It
// ends the connections of these workers from device to device, and leaves their mailboxes and rings
// open: they receive while they have yet to join. A revocation of a life ends those, too, and is
// for good.
//
// A process that crashes leaves its identities in use. They count as held until no node has had a
// connection of the process for a lease. Then what they owned waits for recovery, and for Forget.
//
// # Locks
//
// The lock of a transport.Link is taken before that of the process's mailboxes, and that before a
// mailbox's own. Link.Begin locks the link, and Sending.Done or Cancel unlocks it: what goes into a
// frame is read in between, so that numbers that grow are sent in their order.
//
// # Where the pool's view is kept
//
// The view, the store's configuration, the master's role and the clients' identities are registers
// of package membership: kept by a majority of the nodes, or by another service, such as Consul.
// Without them nothing of them changes, while verbs go on.
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
package control
