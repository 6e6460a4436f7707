package client_test

import (
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// BenchmarkTelemetry shows which share of a run's processor time it takes to count and to tell: of
// GETs of one worker, the nanoseconds that counting adds to each, and the processor time of the
// publisher's thread meanwhile. On memory they are the fastest operations there are; on tcp the
// nodes run in this process, too. A comparison of a DB that tells with one that does not would show
// the machine's noise.
func BenchmarkTelemetry(b *testing.B) {
	b.Run("mem", func(b *testing.B) { benchmarkTelemetry(b, create(b, "mem:"), 3_000_000) })
	b.Run("tcp", func(b *testing.B) {
		var addresses []string
		for range 3 {
			n, err := fabrics.Serve(fabrics.NodeConfig{Listen: "127.0.0.1:0", Memory: 256 << 20})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { n.Close() })
			addresses = append(addresses, n.Addr())
		}
		benchmarkTelemetry(b, create(b, "tcp:"+strings.Join(addresses, ",")), 100_000)
	})
}

func benchmarkTelemetry(b *testing.B, pool *stores.Pool, gets int) {
	s, ep, err := pool.Worker("counted", stores.Options{})
	if err != nil {
		b.Fatal(err)
	}
	count, _ := client.Counting(s, ep)
	each := func(n int, f func()) float64 { // processor time of an f in nanoseconds
		before := realtime.CPU()
		for range n {
			f()
		}
		return float64(realtime.CPU()-before) / float64(n)
	}
	const counts = 20_000_000
	adds := each(counts, count) - each(counts, func() {})
	s.Close()
	ep.Close()

	db, err := pool.DB(stores.DBOptions{Workers: 1, NoKeeper: true})
	if err != nil {
		b.Fatal(err)
	}
	stop := client.PublishOnThread(db, pool.Fabric)
	keys := fill(b, db)
	began, before, n := time.Now(), realtime.CPU(), 0
	takes := 0.0
	for b.Loop() {
		takes = each(gets, func() {
			if _, err := db.Get(background, keys[n%len(keys)]); err != nil {
				b.Fatal(err)
			}
			n++
		})
	}
	cpu, lasted := realtime.CPU()-before, time.Since(began)
	publisher := stop()
	b.ReportMetric(adds, "ns-added/op")
	b.ReportMetric(takes, "ns-GET/op")
	b.ReportMetric(float64(publisher.Microseconds())/lasted.Seconds(), "µs-publisher/s")
	b.ReportMetric(100*(adds*float64(n)+float64(publisher))/float64(cpu), "%-share")
	b.ReportMetric(0, "ns/op")
}
