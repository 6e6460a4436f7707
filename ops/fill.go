package ops

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
)

// Fill says how full a part of a pool is.
type Fill struct {
	Of      string  `json:"of"`
	Full    float64 `json:"full"` // 0 to 1
	Used    uint64  `json:"used"`
	All     uint64  `json:"all"`
	Sampled bool    `json:"sampled,omitempty"` // Used and All are of a part that stands for the whole
}

// fillsOf returns the fills without those that are not known.
func fillsOf(all []stores.Fill) []Fill {
	fills := []Fill{}
	for _, f := range all {
		if f.All > 0 {
			fills = append(fills, Fill{f.Of, float64(f.Used) / float64(f.All), f.Used, f.All, f.Sampled})
		}
	}
	return fills
}

// addFill adds how full the pool is, or why that is not known.
func (s *State) addFill(p *stores.Pool) {
	all, err := p.Kind.Fill(p.Fabric)
	if err != nil {
		s.Problem = err.Error()
	}
	s.Fill = fillsOf(all)
}

func (s *State) printFill(w io.Writer) {
	if len(s.Fill) == 0 {
		return
	}
	rows := [][]string{{"how full", "", "used", "of", ""}}
	for _, f := range s.Fill {
		sampled := ""
		if f.Sampled {
			sampled = "in a sample"
		}
		rows = append(rows, []string{f.Of, fmt.Sprintf("%.1f %%", 100*f.Full), format.Count(f.Used), format.Count(f.All), sampled})
	}
	fmt.Fprintln(w)
	table.Print(w, rows, 4)
}

var (
	poolFull = ofPool.figure("farkv_pool_full_ratio",
		"How full a part of the pool is, 0 to 1, as of the last minute; of large ones a sample.", "of")
	poolClients = ofPool.figure("farkv_pool_clients",
		"Identities of clients: those of live ones, and of dead ones that wait for recovery.", "state")
)

// fillEvery is for how long scrapes get the same answer to how full the pool is: a new one reads up
// to some hundred KiB of the pool.
const fillEvery = 30 * time.Second

// fillGauge caches how full the pool is, for the scrapes of one process.
type fillGauge struct {
	f rdma.Fabric

	mu   sync.Mutex
	at   time.Time // of the last look
	kind *stores.Kind
	last []Fill
}

func newFillGauge(f rdma.Fabric) *fillGauge { return &fillGauge{f: f} }

// look returns the cached fills. When they are older than fillEvery it reads them again. Fills that
// cannot be read are left out until then.
func (g *fillGauge) look() []Fill {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.at.IsZero() && time.Since(g.at) < fillEvery {
		return g.last
	}
	g.at, g.last = time.Now(), nil
	if g.kind == nil {
		kind, err := stores.KindOf(g.f)
		if err != nil {
			return nil
		}
		g.kind = kind
	}
	if g.kind.Fill != nil {
		if all, err := g.kind.Fill(g.f); err == nil {
			g.last = fillsOf(all)
		}
	}
	return g.last
}

func (g *fillGauge) collect(to sink) {
	for _, f := range g.look() {
		to.gauge(poolFull, f.Full, f.Of)
	}
	clients, err := clientsOf(g.f)
	if err != nil {
		return
	}
	to.gauge(poolClients, float64(len(living(clients))), "live")
	to.gauge(poolClients, float64(deadOf(clients)), "dead")
}
