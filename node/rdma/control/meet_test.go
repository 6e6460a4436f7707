package control_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/transport"
)

// TestOffersFromNodes: of what a node passes on, an offer is as long as it says, and no longer than
// one may be, whatever comes behind it. So is an answer.
func TestOffersFromNodes(t *testing.T) {
	p := control.New(control.Options{Registry: membership.Memory()}, control.Record{
		ID: "a pool without nodes", Nodes: 1, Addresses: []string{"127.0.0.1:1"}, Memory: 4096, Clients: 4,
		Lease: control.DefaultLease,
	})
	defer p.Disconnect()
	const head, answerHead = control.OfferMailBytes, 8
	for _, c := range []struct {
		says  uint32
		bytes int // that come
		taken bool
	}{
		{control.MaxOffer, control.MaxOffer, true},
		{1, 8, true},
		{control.MaxOffer, control.MaxOffer - 8, false},
		{control.MaxOffer + 1, 2 * control.MaxOffer, false},
		{1<<32 - 1, 2 * control.MaxOffer, false},
	} {
		offer, answer := make([]byte, head+c.bytes), make([]byte, answerHead+c.bytes)
		binary.LittleEndian.PutUint32(offer[12:], 1)                       // the sender's client
		binary.LittleEndian.PutUint32(offer[32:], uint32(rdma.OwnBoxes+1)) // and its mailbox
		binary.LittleEndian.PutUint32(offer[36:], c.says)
		binary.LittleEndian.PutUint32(answer, c.says)
		for what, body := range map[int][]byte{control.MailOffer: offer, control.MailAnswer: answer} {
			err := p.Mail(0, transport.Header{Items: what}, body)
			if errors.Is(err, transport.ErrProtocol) == c.taken {
				t.Errorf("mail for %d that says %d bytes, and has %d: %v", what, c.says, c.bytes, err)
			}
		}
	}
}
