package metrics

import (
	"sync"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
)

var (
	poolFull = poolFigures.figure("farkv_pool_full_ratio",
		"How full a part of the pool is, 0 to 1, as of the last minute; of large ones a sample.", "of")
	poolClients = poolFigures.figure("farkv_pool_clients",
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
	last []ops.Fill
}

func newFillGauge(f rdma.Fabric) *fillGauge { return &fillGauge{f: f} }

// look returns the cached fills. When they are older than fillEvery it reads them again. Fills that
// cannot be read are left out until then.
func (g *fillGauge) look() []ops.Fill {
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
			g.last = ops.KnownFills(all)
		}
	}
	return g.last
}

func (g *fillGauge) collect(to sink) {
	for _, f := range g.look() {
		to.gauge(poolFull, f.Full, f.Of)
	}
	live, dead, err := ops.CountClients(g.f)
	if err != nil {
		return
	}
	to.gauge(poolClients, float64(live), "live")
	to.gauge(poolClients, float64(dead), "dead")
}
