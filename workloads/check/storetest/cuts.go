package storetest

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check"
)

// cuts has the workers of a process go on while its connections to the nodes are cut again and
// again. Workers meet verbs with unknown outcome, and nodes that become reachable again.
// Nodes call each other over the same wires.
func (h *Harness) cuts(t *testing.T, on *wired) {
	ops := 160 // in some 100 cuts
	if os.Getenv("FARKV_LONG") == "1" {
		ops = 400
	}
	l := load{workers: 8, keys: 4, ops: ops / *part, seed: 4, maxValue: h.MaxValue, patience: 2, cut: true,
		ended: new(atomic.Int64)}
	addresses, end, err := on.nodes(h)
	report(t, err)
	defer func() { report(t, end()) }()
	var all wires
	for i := range addresses {
		w, err := newWire(addresses[i])
		report(t, err)
		defer w.close()
		all = append(all, w)
		addresses[i] = w.Addr().String()
	}
	f, err := on.pool(h, addresses)
	report(t, err)
	defer f.Close()
	stop := make(chan struct{})
	var cutter sync.WaitGroup
	begin := sync.OnceFunc(func() { cutter.Go(func() { all.cut(rand.New(rand.NewPCG(l.seed, 0)), l.ended, stop) }) })
	recorders, err := h.play(f, l, 0, func(w int, _ *check.Recorder) error {
		if w == l.workers-1 {
			begin()
		}
		return nil
	})
	close(stop)
	cutter.Wait()
	report(t, err)
	hist := merge(recorders)
	for _, o := range hist.With(check.Uncertain, check.TimedOut, check.Failed) {
		t.Log(&o)
	}
	t.Logf("%d operations, %d cuts", len(hist), all.cuts())
	if n := all.cuts(); n < 10 {
		t.Errorf("connections were cut %d times", n)
	}
	report(t, varied(hist))
	report(t, judge(hist, true, 0))
	report(t, reachable(f))
	report(t, h.master(f))
	report(t, h.sound(f, false))
}

// reachable waits until all nodes answer again.
func reachable(f rdma.Fabric) error {
	ep, err := f.Open("reachable")
	if err != nil {
		return err
	}
	for n := range f.Nodes() {
		for until := ep.Now() + childPatience; ; ep.Sleep(5 * time.Millisecond) {
			b := ep.Batch()
			b.Read(rdma.At(n, 0), 8)
			err := rdma.Do(ep, b, childPatience)
			b.Release()
			if err == nil {
				break
			}
			if ep.Now() > until {
				return err
			}
		}
	}
	return ep.Close()
}

// master does once what a master does: it recovers dead clients, and sweeps what has no owner any
// more.
func (h *Harness) master(f rdma.Fabric) error {
	ep, err := f.Open("master")
	if err != nil {
		return err
	}
	_, err = cluster.Once(ep, f, h.Recoverer, cluster.Options{Lease: 300 * time.Millisecond})
	return errors.Join(err, ep.Close())
}

// wire carries connections to a node, until they are cut.
type wire struct {
	net.Listener
	to    string
	group sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{} // nil: the wire is closed
	cut   int
}

type wires []*wire

func newWire(to string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{Listener: l, to: to, conns: map[net.Conn]struct{}{}}
	w.group.Go(w.accept)
	return w, nil
}

func (w *wire) accept() {
	for {
		in, err := w.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", w.to)
		if err != nil {
			in.Close()
			continue
		}
		if !w.open(in) {
			in.Close()
			out.Close()
			return
		}
		w.group.Go(func() { w.carry(out, in, in) })
		w.group.Go(func() { w.carry(in, out, in) })
	}
}

// open notes a connection, unless the wire was closed meanwhile: nodes call each other for as long
// as they can, and end behind it.
func (w *wire) open(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conns != nil {
		w.conns[c] = struct{}{}
	}
	return w.conns != nil
}

// carry copies until either end is closed; then it closes both.
func (w *wire) carry(to, from, in net.Conn) {
	p := make([]byte, 4<<10) // so small that cuts fall into frames
	for {
		n, err := from.Read(p)
		if err == nil {
			_, err = to.Write(p[:n])
		}
		if err != nil {
			to.Close()
			from.Close()
			w.mu.Lock()
			delete(w.conns, in)
			w.mu.Unlock()
			return
		}
	}
}

func (w *wire) close() {
	w.Close()
	w.mu.Lock()
	for c := range w.conns {
		c.Close()
	}
	w.conns = nil
	w.mu.Unlock()
	w.group.Wait()
}

func (w *wire) cutAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		c.Close()
		w.cut++
	}
}

// cut cuts what goes over one of the wires again and again, until stop is closed. In between some
// operations end, or none would come to its end where the machine has much else to do; and no more
// than some, or all would have ended before the cuts there.
func (all wires) cut(rng *rand.Rand, ended *atomic.Int64, stop <-chan struct{}) {
	const fewest, most = 4, 16
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	last, since := int64(-most), time.Now()
	for pause := time.Duration(0); ; {
		select {
		case <-stop:
			return
		case now := <-tick.C:
			n := ended.Load() - last
			if n < fewest || n < most && now.Sub(since) < pause {
				continue
			}
			all[rng.IntN(len(all))].cutAll()
			last, since, pause = last+n, now, time.Duration(rng.IntN(60))*time.Millisecond
		}
	}
}

func (all wires) cuts() (n int) {
	for _, w := range all {
		w.mu.Lock()
		n += w.cut
		w.mu.Unlock()
	}
	return n
}
