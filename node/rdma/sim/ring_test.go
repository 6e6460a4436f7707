package sim_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// The ring of these tests, with one buffer behind a word that its receiver sets when it is there.
const (
	ringAt   = 4096
	ringRoom = 256 << 10
)

// receive opens the ring and waits for ever.
func receive(t *testing.T, s *sim.Sim) *sim.Worker {
	return s.GoAt(0, "receiver", func(ep rdma.Endpoint) {
		r, err := rdma.OpenRing(ep, rdma.RingOptions{Node: 0, Number: 1})
		if err == nil {
			err = r.Post(rdma.Span{Addr: rdma.At(0, ringAt), Len: ringRoom})
		}
		if err != nil {
			t.Error(err)
		}
		ep.Sleep(time.Second)
	})
}

// entry fills p with the number of an entry, in each word: none is zero.
func entry(p []byte, number uint64) []byte {
	for i := 0; i+8 <= len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], number)
	}
	return p
}

// appendEntry appends an entry of n bytes, and waits.
func appendEntry(ep rdma.Endpoint, number uint64, n int) error {
	b := ep.Batch()
	defer b.Release()
	b.Append(rdma.RingAt(0, 1), entry(b.Alloc(n), number))
	return rdma.Do(ep, b, time.Second)
}

// ringMemory returns what is in the buffer, once all is over.
func ringMemory(t *testing.T, s *sim.Sim) []byte {
	t.Helper()
	ep, err := s.Open("look")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	p, err := rdma.ReadBytes(ep, "look", rdma.At(0, ringAt), ringRoom, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestBlocksLieApart: blocks of entries that are longer than the MTU have others' between them.
func TestBlocksLieApart(t *testing.T) {
	const senders, entries, blocks, mtu = 3, 20, 4, 256
	o := sim.Options{Seed: 1, MTU: mtu}
	s := open(t, o)
	receiver := receive(t, s)
	left := senders
	for id := range uint64(senders) {
		s.Go(fmt.Sprint("sender ", id), func(ep rdma.Endpoint) {
			ep.Sleep(10 * time.Microsecond)
			for i := range uint64(entries) {
				if err := appendEntry(ep, 1+id*entries+i, blocks*mtu); err != nil {
					t.Error(err)
				}
			}
			if left--; left == 0 {
				s.CrashAfter(receiver, 0)
			}
		})
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	apart, seen, last := 0, map[uint64]int{}, uint64(0)
	for p := ringMemory(t, s)[:senders*entries*blocks*mtu]; len(p) > 0; p = p[mtu:] {
		number := binary.LittleEndian.Uint64(p)
		if want := entry(make([]byte, mtu), number); !bytes.Equal(p[:mtu], want) {
			t.Errorf("a block of entry %d is torn", number)
		}
		if seen[number]++; seen[number] > 1 && last != number {
			apart++
		}
		last = number
	}
	if len(seen) != senders*entries || apart < entries {
		t.Errorf("%d entries came, and %d of their blocks lie apart", len(seen), apart)
	}
}

// TestCrashesLeaveHoles crashes the receiver, a sender, or fences one off, while entries land. What
// was acknowledged is whole; of the rest, blocks may be torn, and places empty with others' behind
// them. An entry that is late does not land when the ring has ended.
func TestCrashesLeaveHoles(t *testing.T) {
	for _, victim := range []string{"receiver", "sender 0", "fenced"} {
		holes, torn, acked := 0, 0, 0
		for seed := range uint64(60) {
			o := sim.Hostile(seed)
			o.MTU, o.DMAProb = 256, 0.1
			s := open(t, o)
			receiver := receive(t, s)
			done := map[uint64]int{}
			var workers []*sim.Worker
			left := 4
			for id := range 4 {
				workers = append(workers, s.Go(fmt.Sprint("sender ", id), func(ep rdma.Endpoint) {
					ep.Sleep(10 * time.Microsecond)
					for i := range 20 {
						number, n := uint64(1+id*100+i), 64*(1+(i*7+id)%10)
						err := appendEntry(ep, number, n)
						if err == nil {
							done[number] = n
						} else if victim == "sender 0" && !errors.Is(err, rdma.ErrClosed) { // unwound at the end
							t.Errorf("seed %d: append: %v", seed, err)
						}
					}
					if left--; left == 0 || victim == "sender 0" && left == 1 {
						s.CrashAfter(receiver, time.Millisecond)
					}
				}))
			}
			at := time.Duration(10+seed) * time.Microsecond
			switch victim {
			case "receiver":
				s.CrashAfter(receiver, at)
			case "sender 0":
				s.CrashAfter(workers[0], at)
			default:
				s.Go("revoker", func(ep rdma.Endpoint) {
					ep.Sleep(at)
					if err := s.Revoke(workers[0].Client()); err != nil {
						t.Error(err)
					}
				})
			}
			if err := s.Run(); err != nil {
				t.Fatal(err)
			}
			h, b := look(t, seed, ringMemory(t, s), done)
			holes, torn, acked = holes+h, torn+b, acked+len(done)
		}
		t.Logf("%s: %d acknowledged, %d holes, %d torn", victim, acked, holes, torn)
		// A sender's death does not keep what it sent from landing.
		if acked == 0 || victim != "sender 0" && (holes == 0 || torn == 0) {
			t.Errorf("%s: %d acknowledged, %d holes, %d torn: these crashes show nothing", victim, acked, holes, torn)
		}
	}
}

// look checks that each entry is there that was acknowledged, and counts strides that are empty and
// torn ones.
func look(t *testing.T, seed uint64, p []byte, acked map[uint64]int) (holes, torn int) {
	whole := map[uint64]int{}
	empty := 0
	for ; len(p) > 0; p = p[64:] {
		number := binary.LittleEndian.Uint64(p)
		switch {
		case bytes.Equal(p[:64], make([]byte, 64)):
			empty++
			continue
		case bytes.Equal(p[:64], entry(make([]byte, 64), number)):
			whole[number] += 64
		default:
			torn++
		}
		holes, empty = holes+empty, 0
	}
	for number, n := range acked {
		if whole[number] != n {
			t.Errorf("seed %d: entry %d of %d bytes was acknowledged, and %d are there", seed, number, n, whole[number])
		}
	}
	return holes, torn
}

// TestAppendsTakeTheirWay: on a cluster's machines an append takes one round trip with its READ's
// PCIe, and many senders are bound by the receiver's NIC.
func TestAppendsTakeTheirWay(t *testing.T) {
	p, err := sim.LookupProfile("rowan-testbed")
	if err != nil {
		t.Fatal(err)
	}
	h := &p.Hardware
	o := p.Options(1, 1)
	o.Memory = 64 << 20
	s := open(t, o)
	receiver := s.GoAt(0, "receiver", func(ep rdma.Endpoint) {
		r, err := rdma.OpenRing(ep, rdma.RingOptions{Node: 0, Number: 1})
		if err == nil {
			err = r.Post(rdma.Span{Addr: rdma.At(0, ringAt), Len: 48 << 20})
		}
		if err != nil {
			t.Error(err)
		}
		ep.Sleep(time.Second)
	})
	const clients, each = 160, 400
	var one, all time.Duration
	s.Go("lone", func(ep rdma.Endpoint) {
		ep.Sleep(100 * time.Microsecond)
		start := ep.Now()
		if err := appendEntry(ep, 1, 64); err != nil {
			t.Error(err)
		}
		one = ep.Now() - start
		start = ep.Now()
		left := clients
		for i := range clients {
			s.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
				defer func() { left-- }()
				for range each / 4 {
					b := ep.Batch()
					for range 4 {
						b.Append(rdma.RingAt(0, 1), entry(b.Alloc(64), 1))
					}
					if err := rdma.Do(ep, b, time.Second); err != nil {
						t.Error(err)
					}
					b.Release()
				}
			})
		}
		for left > 0 {
			ep.Sleep(time.Microsecond)
		}
		all = ep.Now() - start
		s.CrashAfter(receiver, 0)
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	least := 2*h.Propagation + h.PCIe + h.Doorbell + 2*h.Verb
	if one < least || one > least+200*time.Nanosecond {
		t.Errorf("an append takes %v, its way and CPU %v", one, least)
	}
	if rate := clients * each / all.Seconds() / 1e6; rate > h.PersistMops || rate < h.PersistMops*0.9 {
		t.Errorf("%d senders append %.1f million a second, and the NIC does %.1f", clients, rate, h.PersistMops)
	}
}
