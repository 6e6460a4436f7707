package rowan_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	logs "github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/shards"
)

// Of the paper's set-up (section 6.1), but for the number of clients, which it does not say.
const (
	paperServers = 6
	paperWorkers = 24
	paperShards  = 48 // a server
	paperKey     = 48 // bytes, ZippyDB's mean
	paperValue   = 40 // of which the mean is 43; but an entry then takes 192 bytes, since its headers are 40, and here 128
)

// paper is servers as the paper's are. Its segments are not filled in the time that is simulated: nothing is digested
// then, or collected, with any kind.
func paper(k kv.Kind) kv.Options {
	return kv.Options{
		Kind: k, Nodes: paperServers, Shards: paperServers * paperShards, Workers: paperWorkers, Slots: 256,
		PairBytes: 1000, KeyBytes: 100, Keys: 100_000,
		Log: logs.Options{
			Ring: 1, Segments: 1000, SegmentBytes: 4 << 20, Ahead: 512, Reserve: 80, Secret: 1,
		},
		FullAfter: 100 * time.Millisecond,
	}
}

// measured is what came of a measurement: rates, latencies in order, and for which share of the time the servers' media,
// NICs and workers' cores were busy, waits of cores for modules left out.
type measured struct {
	mops, dlwa       float64
	put, get         []time.Duration
	busy, nic, cores float64
}

// variants are what is measured.
func variants() (all []variant) {
	for _, k := range kv.Kinds() {
		all = append(all, variant{k.String(), paper(k)})
	}
	patient := paper(kv.Batch)
	patient.GatherFor = 20 * time.Microsecond
	return append(all, variant{"batch-kv-20µs", patient})
}

type variant struct {
	name string
	kv.Options
}

// load is what is asked of servers, and on how many modules each.
type load struct {
	puts, dimms int
}

// BenchmarkKinds measures kinds of replication on the paper's machines in virtual time (Figures 9, 10 and 13), with keys
// that are chosen evenly, and clients with one operation in flight each: $FARKV_CLIENTS of them, 2,880 by default.
func BenchmarkKinds(b *testing.B) {
	clients := 2880
	if n, err := strconv.Atoi(os.Getenv("FARKV_CLIENTS")); err == nil {
		clients = n
	}
	for _, l := range []load{{50, 3}, {100, 3}, {50, 1}} {
		for _, v := range variants() {
			b.Run(fmt.Sprintf("puts=%d/dimms=%d/%s", l.puts, l.dimms, v.name), func(b *testing.B) {
				for b.Loop() {
					m, err := measure(v.Options, l, clients)
					if err != nil {
						b.Fatal(err)
					}
					m.report(b)
				}
			})
		}
	}
}

func (m *measured) report(b *testing.B) {
	b.ReportMetric(m.mops, "Mops")
	b.ReportMetric(m.dlwa, "DLWA")
	b.ReportMetric(median(m.put), "put-µs")
	if len(m.get) > 0 {
		b.ReportMetric(median(m.get), "get-µs")
	}
	b.ReportMetric(100*m.busy, "media-%")
	b.ReportMetric(100*m.nic, "NIC-%")
	b.ReportMetric(100*m.cores, "cores-%")
	b.ReportMetric(0, "ns/op")
}

func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2]) / 1e3
}

// counted is what all servers have used, up to a time.
type counted struct {
	at             time.Duration
	media, asked   uint64
	busy, nic, cpu time.Duration
}

func count(s *sim.Sim) *counted {
	c := &counted{at: s.Now()}
	for n, u := range s.Usage()[:paperServers] {
		c.nic += u.NIC
		c.cpu += u.CPU
		c.busy += s.PMem(n).Busy()
		for _, d := range s.PMem(n).Counters() {
			c.media += d.MediaWrites
			c.asked += d.WriteRequests
		}
	}
	return c
}

// measuring is a measurement under way.
type measuring struct {
	*cluster
	load
	s             *sim.Sim
	clients       int
	left, ready   int // clients that have not ended, and that have inserted their keys
	from, until   time.Duration
	before, after *counted
	got           measured
}

// The keys of each client, and the time that is measured, behind a warm-up, in which all are inserted.
const (
	keysEach = 12
	warmUp   = 300 * time.Microsecond
	duration = 700 * time.Microsecond
)

// measure runs clients against servers.
func measure(o kv.Options, l load, clients int) (*measured, error) {
	p, err := sim.LookupProfile("rowan-testbed")
	if err != nil {
		return nil, err
	}
	so := p.Options(1, paperServers)
	so.Memory, so.PMem, so.MTU, so.CountRings = o.Size(), &p.PMem, 4096, true
	so.PMem.DIMMs = l.dimms
	// The profile's is the whole of an operation, 24 cores' of 18 million a second. An answer's doorbell and completion
	// are counted by themselves here.
	h := so.Hardware
	h.Direct, h.ServiceTime = true, h.ServiceTime-h.Doorbell-h.Verb-h.Poll
	h.PeerTime = h.Poll
	var nodes []int
	for n := range paperServers {
		nodes = append(nodes, n)
	}
	config, err := shards.New(nodes, paperShards, 3)
	if err != nil {
		return nil, err
	}
	m := &measuring{
		cluster: &cluster{o: o, config: config.Commit(), running: make([]*kv.Server, paperServers)},
		load:    l, s: sim.New(so), clients: clients, left: clients,
	}
	defer m.s.Close()
	for n := range paperServers {
		m.s.GoAt(n, fmt.Sprint("server ", n), func(ep rdma.Endpoint) {
			srv, err := kv.Open(ep, m.configs(), m.o, n)
			if err == nil {
				m.running[n] = srv
				err = srv.Run(ep)
			}
			if err != nil && !errors.Is(err, rdma.ErrClosed) {
				m.fail("server %d: %w", n, err)
			}
		})
	}
	for i := range clients {
		m.s.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
			ep.Sleep(100 * time.Microsecond)
			if err := m.client(ep, i); err != nil {
				m.fail("client %d: %w", i, err)
			}
			if m.left--; m.left == 0 {
				m.stop()
			}
		})
	}
	if err := errors.Join(m.s.Run(), m.wrong); err != nil {
		return nil, err
	}
	return m.result(), nil
}

func (m *measuring) key(client, n int) []byte {
	return fmt.Appendf(nil, "%0*d", paperKey, client*keysEach+n)
}

// client inserts its keys, and reads and updates all clients' until the time is over.
func (m *measuring) client(ep rdma.Endpoint, number int) error {
	store, err := m.open(ep, 100*time.Millisecond)
	if err != nil {
		return err
	}
	defer store.Close()
	value := make([]byte, paperValue)
	for n := range keysEach {
		if err := store.Insert(m.key(number, n), value); err != nil {
			return err
		}
	}
	if m.ready++; m.ready == m.clients {
		m.from = ep.Now() + warmUp
		m.until = m.from + duration
	}
	for rng := ep.Rand(); ; {
		began := ep.Now()
		if m.until > 0 && began >= m.from && m.before == nil {
			m.before = count(m.s)
		}
		if m.until > 0 && began >= m.until {
			if m.after == nil {
				m.after = count(m.s)
			}
			return nil
		}
		owner := number
		if m.until > 0 { // all keys are there
			owner = rng.IntN(m.clients)
		}
		key, isPut := m.key(owner, rng.IntN(keysEach)), rng.IntN(100) < m.puts
		if isPut {
			err = store.Update(key, value)
		} else {
			_, err = store.Get(key)
		}
		if err != nil {
			return err
		}
		switch took := ep.Now() - began; {
		case m.until == 0 || began < m.from || began+took >= m.until:
		case isPut:
			m.got.put = append(m.got.put, took)
		default:
			m.got.get = append(m.got.get, took)
		}
	}
}

// result returns what came of it.
func (m *measuring) result() *measured {
	r, from, to := &m.got, m.before, m.after
	r.mops = float64(len(r.put)+len(r.get)) / duration.Seconds() / 1e6
	took := float64(to.at-from.at) * paperServers
	r.dlwa = float64(to.media-from.media) / float64(to.asked-from.asked)
	r.busy = float64(to.busy-from.busy) / took
	r.nic = float64(to.nic-from.nic) / took
	r.cores = float64(to.cpu-from.cpu) / took / paperWorkers
	return r
}
