package rdmatest

import (
	"errors"
	"slices"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// The procedures of the suite's handler.
const (
	echo    rdma.Proc = iota + 1 // answers the calling client, the node, its size and the question
	add                          // FAA of Arg[1] to the word at Arg[0]
	swap                         // CAS of the word at Arg[0]
	refuses                      // fails
)

var errRefused = errors.New("refused on purpose")

func serve(m rdma.Memory, r *rdma.Request) error {
	switch r.Proc {
	case echo:
		r.Ret = [6]uint64{uint64(r.Client), uint64(m.Node()), m.Size(), r.Arg[0], r.Arg[1], r.Arg[5]}
	case add:
		if err := m.Commit(r.Arg[0], 8); err != nil {
			return err
		}
		r.Ret[0] = m.FetchAdd(r.Arg[0], r.Arg[1])
	case swap:
		r.Ret[0] = m.CompareSwap(r.Arg[0], r.Arg[1], r.Arg[2])
		r.Ret[1] = m.Load(r.Arg[0])
	default:
		return errRefused
	}
	return nil
}

// testCalls checks that questions, answers, errors and the caller's identity get through.
func testCalls(t testing.TB, h Harness) {
	f := h.New(t, 3, poolBytes, serve)
	caller := func(ep rdma.Endpoint) {
		for i := range uint64(50) {
			node := int(i % 3)
			r := rdma.Request{Proc: echo, Arg: [6]uint64{i, i * i, 0, 0, 0, ^i}}
			err := ep.Call(node, &r, patience)
			want := [6]uint64{uint64(ep.Client()), uint64(node), f.Size(), i, i * i, ^i}
			if err != nil || r.Ret != want || r.Client != ep.Client() {
				t.Errorf("call of node %d by %d: %v, %v, want %v", node, ep.Client(), r.Ret, err, want)
				return
			}
		}
		r := rdma.Request{Proc: refuses}
		if err := ep.Call(0, &r, patience); err == nil || errors.Is(err, rdma.ErrTimeout) {
			t.Errorf("a call that the handler refuses: %v", err)
		}
		if err := ep.Call(3, &r, patience); !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("a call of a node that the pool does not have: %v", err)
		}
	}
	h.Parallel(t, f, caller, caller, caller)
	one(t, h, f, func(ep rdma.Endpoint) {
		r := rdma.Request{Proc: swap, Arg: [6]uint64{4096, 0, 9}}
		if err := ep.Call(1, &r, patience); err != nil || r.Ret[0] != 0 || r.Ret[1] != 9 {
			t.Errorf("a node's CAS answers %v (%v)", r.Ret, err)
		}
		r = rdma.Request{Proc: swap, Arg: [6]uint64{4096, 8, 10}}
		if err := ep.Call(1, &r, patience); err != nil || r.Ret[0] != 9 || r.Ret[1] != 9 {
			t.Errorf("a node's CAS that does not match answers %v (%v)", r.Ret, err)
		}
	})
	expect(t, h, f, rdma.At(1, 4096), 9)
}

// testCallsAreAtomic adds to a word by verbs and by calls at once.
func testCallsAreAtomic(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, serve)
	byVerb := func(ep rdma.Endpoint) {
		for range perWorker {
			if _, err := fetchAdd(ep, rdma.At(0, 8), 1); err != nil {
				t.Error(err)
				return
			}
		}
	}
	byCall := func(ep rdma.Endpoint) {
		for range perWorker {
			if err := ep.Call(0, &rdma.Request{Proc: add, Arg: [6]uint64{8, 1}}, patience); err != nil {
				t.Error(err)
				return
			}
		}
	}
	h.Parallel(t, f, slices.Repeat([]func(rdma.Endpoint){byVerb, byCall}, 2)...)
	expect(t, h, f, rdma.At(0, 8), 4*perWorker)
}

// testNoHandler calls a pool that serves no calls.
func testNoHandler(t testing.TB, h Harness) {
	f := h.New(t, 1, poolBytes, nil)
	one(t, h, f, func(ep rdma.Endpoint) {
		if err := ep.Call(0, &rdma.Request{}, patience); !errors.Is(err, rdma.ErrNotSupported) {
			t.Errorf("a call without a handler: %v", err)
		}
	})
}
