package storetest

import (
	"testing"
	"time"
)

// What benchmarks against a floor work on: keys as long as KeyBytes, floor and store in chunks of
// so many operations.
const (
	KeyBytes   = 24
	floorChunk = 500
)

// AppendKey appends the i-th key to p.
func AppendKey(p []byte, i int) []byte {
	p = append(p, "user"...)
	for n, d := uint64(i)*0x9e3779b97f4a7c15, 0; d < KeyBytes-4; n, d = n/10, d+1 {
		p = append(p, '0'+byte(n%10))
	}
	return p
}

// Ratio times a store's operation and its floor, which is the operation's batches alone, issued
// through the same endpoint on the same pool. Chunks of both alternate, so that one run gives an
// honest ratio on a noisy machine: "x-floor".
func Ratio(b *testing.B, floor, store func(i int)) {
	var spent [2]time.Duration
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += floorChunk {
		n := min(floorChunk, b.N-i)
		for k, f := range []func(int){floor, store} {
			start := time.Now()
			for j := range n {
				f(i + j)
			}
			spent[k] += time.Since(start)
		}
	}
	b.ReportMetric(float64(spent[0].Nanoseconds())/float64(b.N), "floor-ns/op")
	b.ReportMetric(float64(spent[1].Nanoseconds())/float64(b.N), "store-ns/op")
	b.ReportMetric(float64(spent[1])/float64(spent[0]), "x-floor")
}
