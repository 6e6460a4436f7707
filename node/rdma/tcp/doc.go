// Package tcp is the fabric of memory nodes that are processes, over any network: a software RNIC.
// A Fabric is a process's way to the nodes of a pool. Verbs go over package transport's connections
// and are executed in the node's process (package memnode), word by word, in the order in which
// they were posted; a write to a connection carries what all workers have ready, both ways.
// Everything of a pool but the verbs is package control's.
//
// # What is not here
//
// The nodes that have a voice do not change in a pool's life. Without TLS an attacker that can
// change packets can do anything. One that can only read them sees data, but not the token.
package tcp
