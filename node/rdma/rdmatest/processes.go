package rdmatest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// The parts that processes of Harness.Spawn play.
const (
	roleAdd   = "add"   // raises a word by FAA
	roleLock  = "lock"  // raises a word by READ and WRITE, under a lock
	roleWords = "words" // writes words of equal bytes, and looks for others
	roleFence = "fence" // is fenced off while it writes, or fences off the others
)

const processes, perProcess = 3, 2000

// Role returns what a process started by Harness.Spawn has to do, or nil when there is no such
// role. The process fails when it returns an error.
func Role(name string) func(f rdma.Fabric, ep rdma.Endpoint) error {
	alone := func(role func(ep rdma.Endpoint) error) func(rdma.Fabric, rdma.Endpoint) error {
		return func(_ rdma.Fabric, ep rdma.Endpoint) error { return role(ep) }
	}
	switch name {
	case roleAdd:
		return alone(addInProcess)
	case roleLock:
		return alone(lockInProcess)
	case roleWords:
		return alone(wordsInProcess)
	case roleFence:
		return fenceInProcess
	}
	return nil
}

func addInProcess(ep rdma.Endpoint) error {
	for range perProcess {
		if _, err := fetchAdd(ep, rdma.At(0, 8), 1); err != nil {
			return err
		}
	}
	return nil
}

func lockInProcess(ep rdma.Endpoint) error {
	me := uint64(ep.Client())
	for range perProcess / 4 {
		for met := uint64(1); met != 0; {
			var err error
			if met, err = compareSwap(ep, rdma.At(0, 16), 0, me); err != nil {
				return err
			}
		}
		v, err := load(ep, rdma.At(1, 64))
		if err != nil {
			return err
		}
		if err := write(ep, rdma.At(1, 64), binary.LittleEndian.AppendUint64(nil, v+1)); err != nil {
			return err
		}
		if met, err := compareSwap(ep, rdma.At(0, 16), me, 0); met != me || err != nil {
			return fmt.Errorf("client %d finds its lock held by %d (%v)", me, met, err)
		}
	}
	return nil
}

func wordsInProcess(ep rdma.Endpoint) error {
	for i := range perProcess {
		v := uint64(byte(i*7+int(ep.Client()))) * 0x0101010101010101
		if err := write(ep, rdma.At(1, 128), binary.LittleEndian.AppendUint64(nil, v)); err != nil {
			return err
		}
		got, err := load(ep, rdma.At(1, 128))
		if err != nil {
			return err
		}
		if got != uint64(byte(got))*0x0101010101010101 {
			return fmt.Errorf("a word was read in parts: %#x", got)
		}
	}
	return nil
}

// fenceInProcess makes the process that comes last the master: it fences off the others while they
// write.
func fenceInProcess(f rdma.Fabric, ep rdma.Endpoint) error {
	rank, err := fetchAdd(ep, rdma.At(0, 24), 1)
	if err != nil {
		return err
	}
	word := rdma.At(0, 512+8*rank)
	if rank == processes-1 {
		return fenceProcesses(f, ep)
	}
	for until := ep.Now() + patience; err == nil && ep.Now() < until; {
		_, err = fetchAdd(ep, word, 1)
	}
	if !errors.Is(err, rdma.ErrStale) {
		return fmt.Errorf("a process of the earlier epoch ended in %w", err)
	}
	if _, err := ep.Join(); err != nil {
		return err
	}
	_, err = fetchAdd(ep, rdma.At(0, 32), 1)
	return err
}

func fenceProcesses(f rdma.Fabric, ep rdma.Endpoint) error {
	ep.Sleep(time.Millisecond)
	ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1})
	err = errors.Join(err, f.Fence(1))
	if _, joined := ep.Join(); err != nil || joined != nil || !ok {
		return fmt.Errorf("fence: %v, %w", ok, errors.Join(err, joined))
	}
	before, err := read(ep, rdma.At(0, 512), 8*processes)
	ep.Sleep(5 * time.Millisecond)
	after, err2 := read(ep, rdma.At(0, 512), 8*processes)
	if err := errors.Join(err, err2); err != nil || !bytes.Equal(before, after) {
		return fmt.Errorf("a verb landed after Fence had returned: %x, then %x (%w)", before, after, err)
	}
	return nil
}

// testProcesses runs the roles in several processes, all on one pool.
func testProcesses(t testing.TB, h Harness) {
	if h.Spawn == nil {
		t.Skip("a pool of this fabric belongs to one process")
	}
	f := h.New(t, 2, poolBytes, nil)
	for _, role := range []string{roleAdd, roleLock, roleWords, roleFence} {
		h.Spawn(t, f, role, processes)
	}
	expect(t, h, f, rdma.At(0, 8), processes*perProcess)
	expect(t, h, f, rdma.At(1, 64), processes*perProcess/4)
	expect(t, h, f, rdma.At(0, 32), processes-1)
}
