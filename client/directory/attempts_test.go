package directory

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// try makes one attempt at a change that goes round a replica; then comes between its two phases.
// What becomes of the change is another attempt's business, as if one client made them all.
func (ch *change) try(t *testing.T, c *Client, before map[rdma.Step]func(), then func()) (done bool, err error) {
	t.Helper()
	c.begin(0)
	settled, err := c.look()
	must(t, err)
	before[stepAccept] = then
	done, err = c.attempt(ch, settled)
	c.giveSpares()
	return done, err
}

// minority is a pool in which a change was accepted by the first replica alone, and its client is
// dead. Its clients go round one replica.
type minority struct {
	around func(r int) *Client
	hooked func(r int) (*Client, map[rdma.Step]func())
}

// halfAccepted makes one; based: on an entry that the other replicas have, too.
func halfAccepted(t *testing.T, based bool) (p minority) {
	f, a, around := three(t, 1, 500)
	p.around = around
	p.hooked = func(r int) (*Client, map[rdma.Step]func()) {
		c, before := hooked(t, f, a, Options{Slow: 10 * time.Millisecond})
		c.quorum.MarkSlow(nodeOf(c, r))
		return c, before
	}
	if based {
		must(t, put(around(0), someHash, 1))
	}
	p.half(t, &change{id: 1<<50 | 1001, decide: adds(2)})
	return p
}

func adds(location uint64) func([]Entry) ([]Entry, error) {
	return func(e []Entry) ([]Entry, error) { return append(e, Entry{someHash, location}), nil }
}

// half makes an attempt that gets no further than the first replica.
func (p minority) half(t *testing.T, ch *change) {
	t.Helper()
	c, before := p.hooked(2)
	if done, err := ch.try(t, c, before, func() { p.around(0).promises(t) }); done || !passing(err) || !ch.sent {
		t.Fatal(done, err, ch.sent)
	}
}

// TestNumberedTwice: an attempt is based on what only one replica has, the next one on less, and
// others forget the latter. Its client does not take it for one that they would know, and make it
// once more.
func TestNumberedTwice(t *testing.T) {
	for others := range uint64(remembered + 3) {
		p := halfAccepted(t, true)
		ch := &change{id: 1<<51 | 1002, decide: adds(3)}
		p.half(t, ch)
		c, before := p.hooked(0)
		if done, err := ch.try(t, c, before, func() { p.around(1).promises(t) }); done || !passing(err) {
			t.Fatal(done, err)
		}
		for n := range others {
			must(t, p.around(0).Change(someHash, 1<<52|(2000+n), func(e []Entry) ([]Entry, error) { return e, nil }))
		}
		c = p.around(-1)
		c.begin(0)
		if err := c.run(ch); others >= remembered {
			wantError(t, err, client.ErrUncertain)
		} else {
			must(t, err)
		}
		if got := p.around(-1).locations(t, someHash); !slices.Equal(got, []uint64{1, 3}) {
			t.Errorf("%d changes by others: %v is there", others, got)
		}
	}
}

// TestRefusedBehindAnAttempt: a change that was sent by one attempt, and that the next one's base
// refuses, is not refused as long as others may go on from what was sent.
func TestRefusedBehindAnAttempt(t *testing.T) {
	for _, based := range []bool{false, true} {
		p := halfAccepted(t, based)
		ch := &change{id: 1<<51 | 1002, decide: func(e []Entry) ([]Entry, error) {
			if len(e) == 0 || e[len(e)-1].Location != 2 {
				return nil, errNo
			}
			return adds(3)(e)
		}}
		p.half(t, ch)
		c, before := p.hooked(0)
		done, err := ch.try(t, c, before, func() { p.around(0).promises(t) })
		got := p.around(2).locations(t, someHash)
		if slices.Contains(got, 3) && done && errors.Is(err, errNo) {
			t.Errorf("based on something: %v; a change was refused, and %v is there", based, got)
		}
	}
}

// TestWalkIsLast: what a walk does not find of a dead client's changes is never found later, also
// where nothing was there before.
func TestWalkIsLast(t *testing.T) {
	for _, based := range []bool{false, true} {
		for _, round := range []int{0, 1, -1} {
			p := halfAccepted(t, based)
			var walked []uint64
			must(t, p.around(round).Walk(func(f *Found) error {
				for _, e := range f.Entries {
					walked = append(walked, e.Location)
				}
				return nil
			}))
			c := p.around(-1)
			c.begin(0)
			if settled, err := c.look(); !settled || err != nil {
				t.Errorf("based on something: %v; a walk round replica %d leaves the bucket half done: %v", based,
					round, err)
			}
			if got := p.around(2).locations(t, someHash); !slices.Equal(got, walked) {
				t.Errorf("based on something: %v; a walk round replica %d finds %v, and then there is %v", based,
					round, walked, got)
			}
		}
	}
}
