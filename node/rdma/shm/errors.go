package shm

import "errors"

// What callers branch on, besides the errors of package rdma.
var (
	ErrNoPool = errors.New("no such pool")
	ErrExists = errors.New("pool exists")
	ErrName   = errors.New("bad pool name")
	ErrInUse  = errors.New("pool is in use")
	ErrFormat = errors.New("not a farkv pool")
	// ErrHeld ends an attempt to forget a client that is still alive.
	ErrHeld = errors.New("client is alive")
)
