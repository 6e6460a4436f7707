// Package rdmatest is the suite that every fabric must pass:
//
//	func TestFabric(t *testing.T) { rdmatest.Run(t, rdmatest.Harness{New: ..., Parallel: ...}) }
package rdmatest

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Harness is how the suite makes and breaks the fabric under test.
type Harness struct {
	// New returns an empty pool, all zero, with at least the given bytes of memory a node, and has
	// it closed by t.Cleanup. h is nil or serves two-sided calls.
	New func(t testing.TB, nodes int, memory uint64, h rdma.Handler) rdma.Fabric
	// Parallel runs workers at the same time, each with an endpoint of its own that is closed when
	// it returns, and returns when all have. Workers report failures by t.Errorf, not t.Fatal.
	Parallel func(t testing.TB, f rdma.Fabric, workers ...func(rdma.Endpoint))
	// KillNode kills a memory node; a worker may call it. Nil where nodes cannot die.
	KillNode func(t testing.TB, f rdma.Fabric, node int)
	// Spawn runs n processes that attach f's pool, open an endpoint and call Role(role) with both,
	// and returns when all have ended; it fails t for those that failed. Nil where a pool belongs
	// to one process.
	Spawn func(t testing.TB, f rdma.Fabric, role string, n int)
	// Beside runs workers as Parallel does, the first of them beside a node: its messages may
	// gather from the node's memory, and it may die with the node. Nil where there are no messages:
	// then Listen must say so.
	Beside func(t testing.TB, f rdma.Fabric, node int, server func(rdma.Endpoint), clients ...func(rdma.Endpoint))
	// Lease is a tenure that leaves a master the time for a few messages to the processes that keep
	// the pool's view; default 200 us.
	Lease time.Duration

	Capabilities
}

// Capabilities are what a fabric claims beyond the contract; what it does not claim is not tested,
// or must be refused with rdma.ErrNotSupported.
type Capabilities struct {
	MaskedCAS bool // MaskedCompareSwap works
	AllocFree bool // a batch allocates nothing in steady state
	InFlight  bool // verbs take time: a wait of a nanosecond times out
	Rings     bool // rings work; Beside runs their receivers
	// PastNodes: messages go past nodes, and arrive by way of one that died until processes hear of
	// that.
	PastNodes bool
}

// Goroutines is Harness.Parallel of fabrics that live in real time: each worker is a goroutine.
func Goroutines(t testing.TB, f rdma.Fabric, workers ...func(rdma.Endpoint)) {
	t.Helper()
	var group sync.WaitGroup
	for _, w := range workers {
		ep, err := f.Open("worker")
		if err != nil {
			t.Error(err)
			break
		}
		group.Go(func() {
			defer func() {
				if err := ep.Close(); err != nil {
					t.Error(err)
				}
			}()
			w(ep)
		})
	}
	group.Wait()
}

// Case is one test of the suite.
type Case struct {
	Name string
	Test func(t testing.TB, h Harness)
}

// Cases returns the suite, for callers that run a part of it.
func Cases() []Case {
	return []Case{
		{"Bytes", testBytes}, {"BytesAgainstModel", testBytesAgainstModel},
		{"PostingOrder", testPostingOrder}, {"FencedAtomic", testFencedAtomic}, {"FencedReads", testFencedReads},
		{"BehindAFence", testBehindAFence},
		{"Chains", testChains}, {"Timeout", testTimeout}, {"FollowUps", testFollowUps},
		{"ReleaseInFlight", testReleaseInFlight}, {"LargeBatches", testLargeBatches},
		{"FetchAddSums", testFetchAddSums}, {"CompareSwapLock", testCompareSwapLock}, {"WholeWords", testWholeWords},
		{"MaskedCompareSwap", testMaskedCompareSwap}, {"CompareSwapResults", testCompareSwapResults},
		{"Access", testAccess}, {"NodeDeath", testNodeDeath}, {"Revoke", testRevoke},
		{"Calls", testCalls}, {"CallsAreAtomic", testCallsAreAtomic}, {"NoHandler", testNoHandler},
		{"Time", testTime}, {"Rand", testRand}, {"Tasks", testTasks}, {"Identities", testIdentities},
		{"UseAfterClose", testUseAfterClose}, {"Counters", testCounters}, {"Trips", testTrips},
		{"Allocations", testAllocations}, {"Processes", testProcesses},
		{"Join", testJoin}, {"Fence", testFence}, {"FenceOfJoined", testFenceOfJoined},
		{"FenceAndOpen", testFenceAndOpen}, {"Advance", testAdvance}, {"Members", testMembers}, {"Views", testViews},
		{"Expel", testExpel}, {"Master", testMaster}, {"Renew", testRenew}, {"LostMaster", testLostMaster},
		{"Forget", testForget}, {"Peek", testPeek},
		{"Config", testConfig}, {"Configs", testConfigs}, {"Deposed", testDeposed}, {"AwaitConfig", testAwaitConfig},
		{"Messages", testMessages}, {"MessageSizes", testMessageSizes}, {"Gather", testGather},
		{"FullMailbox", testFullMailbox}, {"NoMailbox", testNoMailbox}, {"Await", testAwait},
		{"DeadReceiver", testDeadReceiver}, {"FencedMessages", testFencedMessages},
		{"MessageAllocations", testMessageAllocations}, {"Rings", testRings}, {"RingBlocks", testRingBlocks},
		{"DryRing", testDryRing}, {"RingCounts", testRingCounts}, {"RingRefusals", testRingRefusals},
		{"FencedAppends", testFencedAppends}, {"FencedRing", testFencedRing}, {"DeadRing", testDeadRing},
		{"AppendAllocations", testAppendAllocations},
	}
}

// Run runs the whole suite.
func Run(t *testing.T, h Harness) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) { c.Test(t, h) })
	}
}

func (h *Harness) lease() time.Duration {
	if h.Lease == 0 {
		return 200 * time.Microsecond
	}
	return h.Lease
}

// patience bounds each wait; no verb of a healthy fabric takes nearly as long.
const patience = 20 * time.Second

// poolBytes is the memory a node of most tests.
const poolBytes = 1 << 20

func write(ep rdma.Endpoint, a rdma.Addr, p []byte) error {
	b := ep.Batch()
	defer b.Release()
	buf := b.Alloc(len(p))
	copy(buf, p)
	b.Write(a, buf)
	return rdma.Do(ep, b, patience)
}

func read(ep rdma.Endpoint, a rdma.Addr, n int) ([]byte, error) {
	b := ep.Batch()
	defer b.Release()
	op := b.Read(a, n)
	if err := rdma.Do(ep, b, patience); err != nil {
		return nil, err
	}
	return bytes.Clone(op.Buf), nil
}

func load(ep rdma.Endpoint, a rdma.Addr) (uint64, error) {
	p, err := read(ep, a, 8)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(p), nil
}

func fetchAdd(ep rdma.Endpoint, a rdma.Addr, n uint64) (uint64, error) {
	b := ep.Batch()
	defer b.Release()
	op := b.FetchAdd(a, n)
	err := rdma.Do(ep, b, patience)
	return op.Result, err
}

func compareSwap(ep rdma.Endpoint, a rdma.Addr, expect, value uint64) (uint64, error) {
	b := ep.Batch()
	defer b.Release()
	op := b.CompareSwap(a, expect, value)
	err := rdma.Do(ep, b, patience)
	return op.Result, err
}

// word returns a buffer of b that holds v.
func word(b *rdma.Batch, v uint64) []byte {
	p := b.Alloc(8)
	binary.LittleEndian.PutUint64(p, v)
	return p
}

// value is what a READ of a word found.
func value(op *rdma.Op) uint64 { return binary.LittleEndian.Uint64(op.Buf) }

// one runs a single worker.
func one(t testing.TB, h Harness, f rdma.Fabric, worker func(rdma.Endpoint)) {
	t.Helper()
	h.Parallel(t, f, worker)
}

// expect fails t when a word is not what it should be.
func expect(t testing.TB, h Harness, f rdma.Fabric, a rdma.Addr, want uint64) {
	t.Helper()
	one(t, h, f, func(ep rdma.Endpoint) {
		if got, err := load(ep, a); err != nil || got != want {
			t.Errorf("word at %s is %d (%v), want %d", a, got, err, want)
		}
	})
}
