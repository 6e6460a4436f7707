// Package rowan is the client of Rowan-KV (OSDI 2023): a call to the server that is the primary of
// the key's shard, and there to the worker that has the key. Package kv is the server.
//
// A client reads the pool's configuration when it begins, and again when a server answers that it
// has another one. If the answer of an operation does not come, its error wraps
// client.ErrUncertain; a GET is repeated.
package rowan
