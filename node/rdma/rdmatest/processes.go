package rdmatest

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// The parts that processes of Harness.Spawn play.
const (
	roleAdd   = "add"   // raises a word by FAA
	roleLock  = "lock"  // raises a word by READ and WRITE, under a lock
	roleWords = "words" // writes words whose bytes are equal, and looks for others
)

const perProcess = 2000

// Role returns what a process started by Harness.Spawn has to do, or nil when there is no such role. The process
// fails when it returns an error.
func Role(name string) func(ep rdma.Endpoint) error {
	switch name {
	case roleAdd:
		return addInProcess
	case roleLock:
		return lockInProcess
	case roleWords:
		return wordsInProcess
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

// testProcesses runs the roles in several processes, all on one pool.
func testProcesses(t testing.TB, h Harness) {
	if h.Spawn == nil {
		t.Skip("a pool of this fabric belongs to one process")
	}
	const n = 3
	f := h.New(t, 2, poolBytes, nil)
	for _, role := range []string{roleAdd, roleLock, roleWords} {
		h.Spawn(t, f, role, n)
	}
	expect(t, h, f, rdma.At(0, 8), n*perProcess)
	expect(t, h, f, rdma.At(1, 64), n*perProcess/4)
}
