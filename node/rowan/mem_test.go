package rowan_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rowan"
)

func TestMain(m *testing.M) {
	child.Main(childMain)
	goleak.VerifyTestMain(m)
}

const (
	patience = 20 * time.Second
	secret   = 0x5eed
)

// testLog is the log of the tests.
var testLog = rowan.Options{
	Ring: 2, Segments: 24, SegmentBytes: 64 << 10, Ahead: 16, Reserve: 1, Sources: 16, Credit: 16 << 10, Secret: secret,
}

func senderOptions(o rowan.Options, source int) rowan.SenderOptions {
	return rowan.SenderOptions{Log: o, Source: uint16(source), Reserved: o.Credit == noCredit}
}

// noCredit is of logs all sources of which need no leave.
const noCredit = rdma.Stride

// newMem returns a pool of one node for a log.
func newMem(t testing.TB, o rowan.Options, mtu int) *shm.Fabric {
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: o.Base + o.Size(), Clients: 64}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.MTU = mtu
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// newTCP returns several processes' ways to a pool of one node for a log.
func newTCP(t testing.TB, o rowan.Options, mtu, processes int) (all []rdma.Fabric) {
	memory := (o.Base + o.Size() + 4095) &^ 4095
	n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	with := control.Options{Addresses: []string{n.Addr()}, MTU: mtu}
	for i := range processes {
		var f *tcp.Fabric
		if i == 0 {
			f, err = tcp.Create(with, control.Geometry{Nodes: 1, Memory: memory, Clients: 64}, nil)
		} else {
			f, err = tcp.Open(with)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
		all = append(all, f)
	}
	return all
}

func open(t testing.TB, f rdma.Fabric, name string) rdma.Endpoint {
	ep, err := f.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() })
	return ep
}

// fill makes the data of a source's entry: its number, and bytes that follow from both.
func fill(p []byte, source, number int) []byte {
	for i := 8; i < len(p); i++ {
		p[i] = byte(number*7 + source*31 + i)
	}
	binary.LittleEndian.PutUint64(p, uint64(number))
	return p
}

// lengths are of entries, by number: some have blocks with an MTU of 256.
var lengths = [...]int{8, 40, 41, 100, 8, 57, 200, 8, 104, 300, 8, 64, 1000}

// tally checks the entries of a log, in order: by source how far they are.
type tally struct {
	next  [16]int // the number that comes next
	stamp [16]uint64
	again int // that came again
	// recovers: what was digested comes again, from segments that were not free yet.
	recovers bool
}

func (c *tally) digest(e *rowan.Entry) error {
	number, s := int(binary.LittleEndian.Uint64(e.Data)), e.Source
	want := fill(make([]byte, lengths[number%len(lengths)]), int(s), number)
	switch {
	case string(want) != string(e.Data):
		return fmt.Errorf("entry %d of source %d is not what was appended", number, s)
	case c.recovers && e.Stamp <= c.stamp[s] && number < c.next[s]:
		c.again++
		return nil
	case e.Stamp <= c.stamp[s]:
		return fmt.Errorf("entry %d of source %d has stamp %d, behind %d", number, s, e.Stamp, c.stamp[s])
	case number == c.next[s]-1:
		c.again++
	case number != c.next[s]:
		return fmt.Errorf("entry %d of source %d comes behind %d", number, s, c.next[s]-1)
	default:
		c.next[s]++
	}
	c.stamp[s] = e.Stamp
	return nil
}

// TestManyAppends has 16 senders append millions of entries, by way of segments that are used again
// and again: none is lost that was acknowledged, all are whole, and each source's come in its
// order. On tcp the senders are as of four processes.
func TestManyAppends(t *testing.T) {
	t.Run("mem", func(t *testing.T) { manyAppends(t, newMem(t, testLog, 256)) })
	t.Run("tcp", func(t *testing.T) { manyAppends(t, newTCP(t, testLog, 256, 4)...) })
}

func manyAppends(t *testing.T, processes ...rdma.Fabric) {
	const senders = 16
	each := 4_000
	if os.Getenv("FARKV_LONG") == "1" {
		each = 10_000_000 / senders
	}
	var group sync.WaitGroup
	var left atomic.Int32
	left.Store(senders)
	for source := range senders {
		ep := open(t, processes[source%len(processes)], "sender")
		group.Go(func() {
			defer left.Add(-1)
			s, err := rowan.NewSender(ep, senderOptions(testLog, source))
			if err != nil {
				t.Error(err)
				return
			}
			for i := range each {
				if err := s.Append(1, fill(make([]byte, lengths[i%len(lengths)]), source, i), patience); err != nil {
					t.Errorf("append entry %d of source %d: %v", i, source, err)
					return
				}
			}
		})
	}
	ep := open(t, processes[0], "receiver")
	var seen tally
	receive(t, ep, &seen, func() bool { return left.Load() == 0 })
	group.Wait()
	seen.recovers = true
	r, err := rowan.Open(ep, testLog)
	if err == nil {
		_, err = r.Recover(func(_ rowan.Segment, e *rowan.Entry) error { return seen.digest(e) })
	}
	if err != nil {
		t.Fatal(err)
	}
	for source, n := range seen.next {
		if n != each {
			t.Errorf("of source %d came %d of %d entries", source, n, each)
		}
	}
}

// receive is a receiver that frees what it has digested, until over.
func receive(t *testing.T, ep rdma.Endpoint, c *tally, over func() bool) {
	r, err := rowan.Open(ep, testLog)
	for err == nil && !over() {
		err = r.Step()
		for seg, ok := r.Next(); ok && err == nil; seg, ok = r.Next() {
			if err = r.Digest(seg, c.digest); err == nil {
				r.Free(seg)
			}
		}
		ep.Sleep(20 * time.Microsecond)
	}
	if err == nil {
		err = r.Step() // frees what was given back: the rest is for the next receiver
	}
	if err == nil {
		err = r.Close()
	}
	if err != nil {
		t.Error(err)
	}
}
