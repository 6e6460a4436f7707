// Package rowan is the client of Rowan-KV (OSDI 2023): a call to the server that is the primary of
// the key's shard, and there to the worker that has the key. Package kv is what clients and servers
// agree upon, and package kv/server is the server.
//
// A client reads the pool's configuration when it begins, and again when a server answers that it
// has another one. If the answer of an operation does not come, its error wraps
// client.ErrUncertain; a GET is repeated.
//
// # An operation
//
// Each request has the term of the configuration by which it was sent. A server does what is asked
// only in that term, and all of an earlier term is over before a later one is committed. So at most
// one server does a request, and what comes of an attempt is one of these:
//
//	answer                     the operation was done, or refused for what the key has
//	StatusTerm                 nothing was done: read the configuration, ask again
//	StatusWait                 nothing was done: ask again after a pause
//	StatusDamaged              nothing was done: ask again until another replica serves
//	not delivered              nothing was done: join the view, read the configuration, ask again
//	no answer                  a GET is asked again; of a write the outcome is unknown
//	a later term is committed  as no answer, but at once: the answer does not come any more
//
// A client that dies leaves nothing to recover. The servers have its last request, and do it or
// not.
//
// # A pool
//
// Each node's memory has the pool's header, the words of its server, its table of segments, and the
// segments: see package kv. The header never changes. It has the Params, from which each client and
// each server computes the same layout. The configuration, which changes, is in the registers of
// the pool (rdma.Configs): Make stores the first one ahead of the header, and the manager of the
// pool's master the others (NewRecoverer).
//
// # A check
//
// Check goes by what is in memory, not by what servers say. It reads the servers' words first, and
// then all logs. A record of the configuration's term that is not above its shard's CommitVer was
// on all replicas by then, and one of an earlier term was if all members had given what they had in
// this term. So each replica that lacks it, and has nothing newer of the key, is damaged. Other
// records may be on some replicas. Last it asks primaries for keys, since an index that is wrong
// shows in no log.
package rowan
