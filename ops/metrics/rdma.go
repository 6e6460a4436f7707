package metrics

import (
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
)

var (
	rdmaCalls = poolFigures.figure("farkv_rdma_library_calls_total",
		"Calls into libibverbs: each posts all that there is for all nodes, or looks for completions.", "call")
	rdmaSleeps = poolFigures.figure("farkv_rdma_sleeps_total",
		"Sleeps of workers until the device told of completions.")
	rdmaRequests    = poolFigures.figure("farkv_rdma_work_requests_total", "Work requests posted.")
	rdmaCompletions = poolFigures.figure("farkv_rdma_completions_total",
		"Completions taken; of a chain of work requests the last one has one.")
	rdmaConnects = poolFigures.figure("farkv_rdma_queue_pairs_total", "Queue pairs that were connected.")
	rdmaGuesses  = poolFigures.figure("farkv_rdma_masked_retries_total",
		"Plain compare and swaps that masked ones were made of, beyond one each.")
)

// collectDevice is the part of OfPool about an RDMA device; there is nothing of a pool without one.
func collectDevice(f rdma.Fabric, to sink) {
	s, _, _, ok := fabrics.DeviceOf(f)
	if !ok {
		return
	}
	to.counter(rdmaCalls, s.Posts, "post")
	to.counter(rdmaCalls, s.Polls, "poll")
	to.counter(rdmaSleeps, s.Waits)
	to.counter(rdmaRequests, s.Requests)
	to.counter(rdmaCompletions, s.Completions)
	to.counter(rdmaConnects, s.Connects)
	to.counter(rdmaGuesses, s.Guesses)
}
