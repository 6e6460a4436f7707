package main

import (
	"os"
	"runtime"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/drivers"
)

// share leaves half of the processors to memory nodes that are processes of this machine, until the
// function that it returns is called. Workers that run on few threads post together: a message
// carries the verbs of several workers, and no worker is woken by another thread. With 8 workers on
// two processors that halves the system calls of an operation. share changes nothing if $GOMAXPROCS
// is set.
func share(db drivers.Database) (end func()) {
	f, _, ok := drivers.Inside(db)
	if !ok || os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	if l, ok := f.(rdma.Localizer); !ok || !l.Local() {
		return func() {}
	}
	before := runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	return func() { runtime.GOMAXPROCS(before) }
}
