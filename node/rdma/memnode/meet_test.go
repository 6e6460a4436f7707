package memnode

import (
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/workloads/check/wait"
)

// TestFencesAreAskedInOrder fences senders off in many goroutines at a time. Each process that has
// a mailbox for messages from device to device is asked in the order of the fences' numbers, as its
// answer to one speaks for all before.
func TestFencesAreAskedInOrder(t *testing.T) {
	n := newRawNode(t, Config{Device: newFakeDevice()})
	const processes, fencers, fences = 6, 8, 100
	var group sync.WaitGroup
	for client := range processes {
		c := n.call(t, forVerbs)
		h, _, err := say(c, frame(transport.KindListen, control.ListenOpen, 1,
			listenOf(n.rightsOf(rdma.ClientID(client+1)), client+1, 4, 64, 0)))
		if err != nil || h.Status != transport.StatusOK {
			t.Fatalf("a mailbox is not opened: status %d, %v", h.Status, err)
		}
		group.Go(func() {
			for last := uint64(0); last < fencers*fences; {
				h, body, err := next(c)
				if err != nil || h.Kind != transport.KindMessage || h.Items != control.MailPart {
					t.Errorf("%+v, %v", h, err)
					return
				}
				number := binary.LittleEndian.Uint64(body)
				if number <= last {
					t.Errorf("fence %d is asked behind fence %d", number, last)
				}
				last = max(last, number)
				if _, err := c.Write(frame(transport.KindMeet, control.MeetParted, 0, body[:8])); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range fencers {
		group.Go(func() {
			for range fences {
				n.pool.Load().part(processes+1, 0)
			}
		})
	}
	group.Wait()
}

// TestReadersSpeakForNoMailbox: a process that has the read token alone answers no sender in the
// place of a mailbox, nor ends a sender's connection.
func TestReadersSpeakForNoMailbox(t *testing.T) {
	full := transport.Security{Token: []byte("a token of some length"), ReadToken: []byte("another of some length")}
	n := newRawNode(t, Config{Security: full, Device: newFakeDevice()})
	for what, size := range map[int]int{
		control.MeetAnswer: control.ReplyBytes, control.MeetBye: control.ReplyBytes, control.MeetParted: 8,
	} {
		before := n.Stats().Breaches
		reader, _, err := transport.Dial(t.Context(), n.Addr(), transport.Security{ReadToken: full.ReadToken},
			transport.Hello{Purpose: forVerbs, Process: transport.NewID(), Pool: n.fabric.Record().ID})
		if err != nil {
			t.Fatal(err)
		}
		reader.SetDeadline(time.Now().Add(rawPatience))
		h, body, err := say(reader, frame(transport.KindMeet, what, 0, make([]byte, size)))
		if err == nil {
			t.Errorf("meet frame for %d of a reader: %+v %q", what, h, body)
		}
		wait.Until(t, "the node counts it as a breach", func() bool { return n.Stats().Breaches == before+1 })
		reader.Close()
	}
}

// TestOffersAreBounded: what a process says about its end of a connection is as long as it says,
// and no longer than an offer may be: other processes rely on both.
func TestOffersAreBounded(t *testing.T) {
	n := newRawNode(t, Config{})
	le, fits := binary.LittleEndian, transport.Pad(control.MaxOffer)
	for _, said := range []uint32{control.MaxOffer - 8, control.MaxOffer + 1, 1<<32 - 1} {
		offer := make([]byte, control.OfferBytes+fits)
		le.PutUint32(offer[12:], said)
		r := n.rights()
		n.breach(t, forVerbs, frame(transport.KindMeet, control.MeetOffer, 0, append(r.Append(nil), offer...)))
		answer := make([]byte, control.ReplyBytes+fits)
		le.PutUint32(answer[12:], said)
		n.breach(t, forVerbs, frame(transport.KindMeet, control.MeetAnswer, 0, answer))
	}
}
