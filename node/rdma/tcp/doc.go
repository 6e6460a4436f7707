// Package tcp is the fabric of memory nodes that are processes, over any network: a software RNIC.
// A Fabric is a process's way to the nodes of a pool. Verbs go over package transport's connections
// and are executed in the node's process (package memnode), word by word, in the order in which
// they were posted; a write to a connection carries what all workers have ready, both ways.
// Everything of a pool but the verbs is package control's.
//
// # The way of a verb
//
// Post sorts a batch's ops by node, and appends them in frames to the links of these nodes. Then it
// writes what no other goroutine is about to write. A node executes the frames of a connection one
// after another, and answers each. One of the workers that wait for the connection reads the
// answers. It copies what they bring into the ops, and leaves each frame in the inbox of its
// worker. The worker collects the inbox when it posts, waits, sleeps or calls, and only then are
// the ops complete. Op.Fence is not on the wire: a node executes a verb when the one before it is
// over, entries of several blocks apart (memnode's session.append).
//
// # What a failure leaves
//
// An op of which the error wraps rdma.ErrNoEffect was not sent, or was refused by the node: it has
// no effect, now or later. A frame that is lost with its connection is not sent again, and any of
// its ops may have been executed. A long op goes in parts, some of which may have been executed
// when another one fails.
//
// A verb that strays outside of what is registered takes its worker's connection to that node down
// for good, as it would a queue pair: at the node nothing is executed that the worker sent behind
// it, and here what it posts there later fails at once. Other workers of the process, which share
// the link, go on.
//
// # What is not here
//
// The voters do not change in a pool's life. Without TLS an attacker that can change packets can do
// anything. One that can only read them sees data, but not the token.
package tcp
