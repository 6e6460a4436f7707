package kv

import (
	"encoding/binary"
	"errors"
)

// rpcBytes is the length of package rpc's header in a message.
const rpcBytes = 16

// The procedures of a server that clients call.
const (
	ProcGet uint16 = iota + 1
	ProcInsert
	ProcUpdate
	ProcDelete
)

// The statuses of an answer. Only StatusOK says that something was done.
const (
	StatusOK       uint16 = iota // of a GET, the body is the value
	StatusNotFound               // GET, UPDATE, DELETE: the key is not there
	StatusExists                 // INSERT: it is
	StatusFull                   // nothing was changed: there is no room on a replica
	StatusTooLarge               // nothing was changed: key or value are too long
	StatusTerm                   // nothing was done: the client's configuration is not the server's
	StatusBad                    // nothing was done: this is no request
	StatusWait                   // nothing was done: the server cannot yet
	// nothing was done: an entry that may be the key's is damaged; the body is its offset, u64
	StatusDamaged
)

// A request is:
//
//	term u64
//	length of the key u16 | 0 u48
//	key
//	value, to the end
const requestBytes = 16

// Request is what a client asks of a server. parseRequest returns one that aliases the message.
type Request struct {
	Term       uint64 // of the client's configuration
	Key, Value []byte
}

// Append appends a request's bytes to p.
func (r *Request) Append(p []byte) []byte {
	p = binary.LittleEndian.AppendUint64(p, r.Term)
	p = binary.LittleEndian.AppendUint64(p, uint64(len(r.Key)))
	return append(append(p, r.Key...), r.Value...)
}

var errRequest = errors.New("no request")

// ParseRequest returns the request in a message.
func ParseRequest(p []byte) (r Request, err error) {
	if len(p) < requestBytes {
		return r, errRequest
	}
	r.Term = binary.LittleEndian.Uint64(p)
	n := binary.LittleEndian.Uint64(p[8:])
	if p = p[requestBytes:]; n > uint64(len(p)) {
		return r, errRequest
	}
	r.Key, r.Value = p[:n:n], p[n:]
	return r, nil
}

// ProcReplicate asks the worker of the same number at a backup to append an entry to its log.
// Workers of kind RPC send it. The request is, little-endian:
//
//	number u64 of the append, of this worker to this backup, from 1; 0: nothing is to be appended
//	lowest u64: all below it are acknowledged
//	term u32 of the write, or of the question | node u16 of the worker | kind u8 | 0
//	record
//
// The answer is one word: how many bytes the worker has leave to append, in all, since the term
// began. The status is StatusFull when the backup has no more segments.
const ProcReplicate uint16 = 100

// ReplicateBytes is the length of a request ahead of the record.
const ReplicateBytes = 24

// ProcRoute is what a worker of a migration's target asks the worker of the same number at the
// source: the newest record of a key of which the target has none (section 4.6). The request is a
// client's, without a value. The answer is StatusNotFound, or a word and the value:
//
//	term u32 of the record | kind u32
const ProcRoute uint16 = 101
