package rcuckoo

import (
	"errors"
	"fmt"
	"testing"

	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/node/rdma"
)

// TestIdentityAgain has clients with the same identity follow each other. Each goes on above the
// sequences of the one before, as that client's records have them.
func TestIdentityAgain(t *testing.T) {
	p := inlinePool(1)
	p.Clients = 2
	f := memPool(t, 1, p)
	last := map[rdma.ClientID]uint64{}
	for i := range 8 {
		ep, err := f.Open("again")
		must(t, err)
		s, err := Open(ep, session.Options{Pool: f})
		must(t, err)
		if before := last[s.session.ID]; s.session.Shards[0].Seq < before {
			t.Errorf("client %d of round %d begins at %d, and the one before ended at %d", s.session.ID, i,
				s.session.Shards[0].Seq,
				before)
		}
		must(t, s.Insert(fmt.Appendf(nil, "key %d", i), nil))
		last[s.session.ID] = s.session.Shards[0].Seq
		must(t, errors.Join(s.Close(), ep.Close()))
	}
	if len(last) > 2 {
		t.Errorf("%d identities in a pool of two", len(last))
	}
}
