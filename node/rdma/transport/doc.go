// Package transport is how processes and memory nodes talk: frames over a connection that begins
// with a greeting, in which both ends prove that they know the pool's token.
//
// A Link is a process's connection to one node for one purpose. All workers of the process share
// it, and what they send while one of them writes goes with the next write. Answers are read by one
// of the workers that wait for some (see Link.Await), or by a goroutine of the link where none
// does. A link that breaks takes what is in flight down with it, and is made again. It is given up
// when the node is silent though it was asked whether it is alive: see Link.watch and PingEvery. A
// node ends a connection over which its caller says nothing for a few seconds.
//
// The other end is package memnode's. What the frames mean is up to the packages above: control has
// the calls, messages and rings, tcp the verbs.
package transport
