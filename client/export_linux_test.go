package client

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

// PublishOnThread has a DB that nothing was done with yet tell f of itself from a thread of its
// own. stop closes the DB and returns the thread's processor time.
func PublishOnThread(db *DB, f rdma.Fabric) (stop func() time.Duration) {
	db.book.publisher.Close()
	p := newPublisher(f, "bench", db)
	db.book.publisher = p
	took := make(chan time.Duration, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		before := threadCPU()
		p.run()
		took <- threadCPU() - before
	}()
	return func() time.Duration {
		db.Close()
		return <-took
	}
}

func threadCPU() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}
