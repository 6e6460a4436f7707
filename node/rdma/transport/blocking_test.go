package transport_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/workloads/check/wait"
)

// blockingPair returns the two ends of a connection, of which the first waits in the kernel.
func blockingPair(t *testing.T, read, write time.Duration) (net.Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	far, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	near, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	b, err := transport.InKernel(near.(*net.TCPConn), read, write)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, far
}

// TestBlockingCarries: what is written to a connection that waits in the kernel arrives whole, and
// so does its end.
func TestBlockingCarries(t *testing.T) {
	b, far := blockingPair(t, time.Minute, time.Minute)
	sent := bytes.Repeat([]byte("farkv"), 1<<20) // more than its buffers hold
	go func() {
		io.Copy(far, io.LimitReader(far, int64(len(sent))))
		far.Close()
	}()
	wrote := make(chan error, 1)
	go func() {
		_, err := b.Write(sent)
		wrote <- err
	}()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d came back: %v", len(got), len(sent), err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
}

// TestBlockingEnds: Close wakes a reader and a writer.
func TestBlockingEnds(t *testing.T) {
	b, _ := blockingPair(t, time.Hour, time.Hour)
	ended := make(chan error, 2)
	go func() {
		_, err := b.Read(make([]byte, 1))
		ended <- err
	}()
	go func() {
		for { // the peer reads nothing: until it has to wait, and is woken
			if _, err := b.Write(make([]byte, 1<<20)); err != nil {
				ended <- err
				return
			}
		}
	}()
	time.Sleep(50 * time.Millisecond) // both may wait by now; if not they find it closed
	b.Close()
	for range 2 {
		select {
		case err := <-ended:
			if err == nil {
				t.Error("a closed connection was used")
			}
		case <-time.After(wait.Hang):
			t.Fatal("a reader or writer still waits")
		}
	}
}

// TestBlockingPatience: a peer that says nothing, or takes nothing, is not waited for any longer.
func TestBlockingPatience(t *testing.T) {
	b, _ := blockingPair(t, 20*time.Millisecond, 20*time.Millisecond)
	if _, err := b.Read(make([]byte, 1)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("read: %v", err)
	}
	if _, err := b.Write(make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("write: %v", err)
	}
}

// TestBlockingSlowPeer: a peer that takes a little all the time is waited for, though the kernel
// lets a write wait for much longer than the peer's pauses.
func TestBlockingSlowPeer(t *testing.T) {
	const patience = 500 * time.Millisecond
	b, far := blockingPair(t, time.Minute, patience)
	far.(*net.TCPConn).SetReadBuffer(64 << 10)
	wrote := make(chan error, 1)
	go func() {
		var err error
		for range 4 {
			if _, err = b.Write(make([]byte, 256<<10)); err != nil {
				break
			}
		}
		wrote <- err
	}()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	p := make([]byte, 16<<10)
	for {
		select {
		case err := <-wrote:
			if err != nil {
				t.Errorf("write: %v", err)
			}
			return
		case <-tick.C:
			if _, err := far.Read(p); err != nil {
				t.Fatal(err)
			}
		}
	}
}
