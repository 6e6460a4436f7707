// Package control is what a process has of a pool of memory nodes beside the verbs: the pool's
// making, opening and removal, its view, master and identities, and, for each worker, an identity,
// calls to the nodes' procedures, mailboxes and rings. All of it goes over package transport's
// connections to the nodes (package memnode). A fabric adds the verbs: package tcp over the same
// connections, package ibverbs from device to device.
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
