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
//
// A link begins down, and its connections come one after the other:
//
//	caller                           node
//	Dial, the greeting, a hello  ->
//	                             <-  the greeting, a welcome          (dial.go, greet.go)
//	the frames of Link.Begun     ->                                   (link.go)
//	frames of all workers        ->  executed in the order sent       (wire.go)
//	                             <-  answers, in the same order       (read.go)
//	                             <-  messages, at any time            (Link.Takes)
//	a ping, after 200 ms of      ->
//	silence                      <-  a ping, its answer               (alive.go)
//	how long the node may serve  ->                                   (serving.go)
//	                             <-  the rest of its lease, its fence
//
// Each request that has an answer leaves a Flight in the link's queue. An answer is the oldest
// Flight's, or the link breaks. Link.fail takes all Flights at once and loses each of them: a
// verb of a lost one may have been executed, and is not sent again. Keep then dials again, 5 to
// 500 ms later.
//
// The right to read a connection (stream.reader) is taken before Link.mu, stream.mu or Waiter.mu.
// No two of these three are held at a time by this package. Link.Begun runs under Link.mu, and
// may take locks of its own behind it; Flight.Land, Flight.Lose and Link.Takes run under none of
// the three.
package transport
