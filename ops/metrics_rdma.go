package ops

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
)

var (
	rdmaCalls       = figure("farkv_rdma_library_calls_total", "Calls into libibverbs: each posts all that there is for all nodes, or looks for completions.", "call")
	rdmaSleeps      = figure("farkv_rdma_sleeps_total", "Sleeps of workers until the device told of completions.")
	rdmaRequests    = figure("farkv_rdma_work_requests_total", "Work requests posted.")
	rdmaCompletions = figure("farkv_rdma_completions_total", "Completions taken; of a chain of work requests the last one has one.")
	rdmaConnects    = figure("farkv_rdma_queue_pairs_total", "Queue pairs that were connected.")
	rdmaGuesses     = figure("farkv_rdma_masked_retries_total", "Plain compare and swaps that masked ones were made of, beyond one each.")
)

// describeDevice and collectDevice are the parts of PoolMetrics about an RDMA device; there is nothing of a pool without one.
func describeDevice(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{rdmaCalls, rdmaSleeps, rdmaRequests, rdmaCompletions, rdmaConnects, rdmaGuesses} {
		to <- d
	}
}

func collectDevice(f rdma.Fabric, to chan<- prometheus.Metric) {
	s, _, _, ok := fabrics.DeviceOf(f)
	if !ok {
		return
	}
	counter := func(desc *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}
	counter(rdmaCalls, s.Posts, "post")
	counter(rdmaCalls, s.Polls, "poll")
	counter(rdmaSleeps, s.Waits)
	counter(rdmaRequests, s.Requests)
	counter(rdmaCompletions, s.Completions)
	counter(rdmaConnects, s.Connects)
	counter(rdmaGuesses, s.Guesses)
}
