package rcuckoo

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// pace is what clients did in some time.
type pace struct {
	lasts         time.Duration
	inserts, gets uint64
	waited        time.Duration // for INSERTs
	looked        time.Duration // for GETs
}

// rate is INSERTs a second.
func (p pace) rate() float64 { return float64(p.inserts) / p.lasts.Seconds() }

func (p pace) String() string {
	each := func(d time.Duration, n uint64) time.Duration {
		return (d / time.Duration(max(n, 1))).Round(10 * time.Nanosecond)
	}
	return fmt.Sprintf("%7v: %5.2f million INSERTs and as many GETs a second, of %v and %v each", p.lasts,
		p.rate()/1e6, each(p.waited, p.inserts),
		each(p.looked, p.gets))
}

const (
	paceClients = 32
	paceRows    = 2048
)

func paceKey(n int) []byte { return le.AppendUint64(nil, table.Spread(uint64(n)+1)) }

// nearlyFull is a table on the model of the paper's testbed, and how many keys it has.
func nearlyFull(t *testing.T) (*sim.Sim, int) {
	p, bytes, err := table.Size(table.Shape{Nodes: 1, Rows: paceRows, KeyBytes: 8, ValueBytes: 8, Levels: 1,
		RowsPerLock: 8,
		Clients:     paceClients + 1})
	must(t, err)
	profile, err := sim.LookupProfile("rcuckoo-testbed")
	must(t, err)
	o := profile.Options(1, 1)
	at, n, err := table.Device(p, 1)
	must(t, err)
	o.Memory, o.Clients, o.Handler, o.Device = bytes, p.Clients, node.Serve, []sim.Range{{Offset: at, Bytes: n}}
	d := sim.New(o)
	must(t, Make(d, p))
	loaded := paceRows * p.Entries * 92 / 100
	loader, err := d.Open("loader")
	must(t, err)
	s, err := Open(loader, session.Options{Pool: d})
	must(t, err)
	for i := range loaded {
		must(t, s.Insert(paceKey(i), nil))
	}
	must(t, s.Close())
	must(t, loader.Close())
	return d, loaded
}

// TestPaceWhileItGrows measures the rates of 32 clients that INSERT and GET in turns, before a
// table doubles, meanwhile, and afterwards: no client stops. Time is virtual, so the rates are
// the same on all machines.
func TestPaceWhileItGrows(t *testing.T) {
	alone(t)
	d, loaded := nearlyFull(t)
	defer d.Close()
	const tick = 10 * time.Microsecond
	var ticks []pace
	begin := d.Now()
	next, began, ended := loaded, time.Duration(0), time.Duration(0)
	for w := range paceClients {
		d.Go(fmt.Sprint("client ", w), func(ep rdma.Endpoint) {
			s, err := Open(ep, session.Options{Pool: d})
			if err != nil {
				t.Error(err)
				return
			}
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			now := ep.Now()
			note := func(f func(p *pace, took time.Duration)) {
				before := now
				now = ep.Now()
				i := int((now - begin) / tick)
				for len(ticks) <= i {
					ticks = append(ticks, pace{})
				}
				f(&ticks[i], now-before)
			}
			for ended == 0 || now < ended+(ended-began) {
				next++
				if err := s.Insert(paceKey(next-1), nil); err != nil {
					t.Error(err)
					return
				}
				note(func(p *pace, took time.Duration) { p.inserts, p.waited = p.inserts+1, p.waited+took })
				if level, cursor := table.GrowthOf(s.levels.Words[0]); level > 0 && began == 0 {
					began = now
				} else if level > 0 && cursor >= s.session.Table.Ends(1) && ended == 0 {
					ended = now
				}
				if _, err := s.Get(paceKey(rng.IntN(loaded))); err != nil {
					t.Error(err)
				}
				note(func(p *pace, took time.Duration) { p.gets, p.looked = p.gets+1, p.looked+took })
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	must(t, d.Run())
	sum := func(from, to time.Duration) (all pace) {
		for i := max(int((from-begin)/tick), 0); i < min(int((to-begin)/tick), len(ticks)); i++ {
			p := ticks[i]
			all.lasts += tick
			all.inserts, all.gets, all.waited, all.looked = all.inserts+p.inserts, all.gets+p.gets,
				all.waited+p.waited, all.looked+p.looked
		}
		return all
	}
	took := ended - began
	before, meanwhile, behind := sum(began-took, began), sum(began, ended), sum(ended, ended+took)
	t.Logf("%d keys at first, in %d rows\nbefore     %s\nmeanwhile  %s\nbehind     %s", loaded, paceRows, before,
		meanwhile, behind)
	if meanwhile.rate() < before.rate()/4 || behind.rate() < before.rate() {
		t.Error("the table's doubling is in the way")
	}
	judge(t, d)
}
