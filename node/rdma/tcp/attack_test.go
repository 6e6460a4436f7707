package tcp_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/workloads/check/teeth"
)

var (
	full     = transport.Security{Token: token}
	readOnly = transport.Security{ReadToken: readToken}
)

// childGuarded is a node with tokens.
func childGuarded() error {
	n, err := memnode.Listen(memnode.Config{
		Listen: "127.0.0.1:0", Memory: 1 << 20, Handler: addByCall,
		Security: transport.Security{Token: token, ReadToken: readToken},
	})
	if err != nil {
		return err
	}
	fmt.Println(n.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, n.Close())
}

// childFlood attacks the pool that has a node at an address, until its input ends.
func childFlood(addr, conns string) error {
	n, err := strconv.Atoi(conns)
	if err != nil {
		return err
	}
	f, err := tcp.Open(control.Options{Addresses: []string{addr}, Security: readOnly})
	if err != nil {
		return err
	}
	r := f.Record()
	if err := f.Close(); err != nil {
		return err
	}
	stop := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	fmt.Println("attacking")
	tcp.Flood(r, readOnly, n, stop)
	return nil
}

// peakMemory is the most memory that a process has had, in bytes.
func peakMemory(t testing.TB, p *child.Process) uint64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Skipf("how much memory a process has cannot be told here: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		var kib uint64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatalf("no VmHWM in %s", text)
	return 0
}

// works is an honest workload that is under way: writers, each with an endpoint of its own.
type works struct {
	done   []atomic.Uint64 // by writer
	over   atomic.Bool
	failed atomic.Pointer[error]
	group  sync.WaitGroup
}

func work(t testing.TB, f *tcp.Fabric, writers int) *works {
	w := &works{done: make([]atomic.Uint64, writers)}
	for i := range writers {
		ep := attach(t, f, fmt.Sprintf("writer %d", i))
		w.group.Go(func() {
			for n := i; !w.over.Load(); n++ {
				if _, err := add(ep, n%f.Nodes(), uint64(8*i)); err != nil {
					w.failed.Store(&err)
					return
				}
				w.done[i].Add(1)
			}
		})
	}
	t.Cleanup(w.end)
	return w
}

func (w *works) end() {
	w.over.Store(true)
	w.group.Wait()
}

// goOn waits until each writer has done so many more operations.
func (w *works) goOn(t testing.TB, operations uint64) {
	t.Helper()
	for i := range w.done {
		most := w.done[i].Load() + operations
		eventually(t, fmt.Sprintf("writer %d goes on", i), func() bool {
			return w.done[i].Load() >= most || w.failed.Load() != nil
		})
	}
	if err := w.failed.Load(); err != nil {
		t.Fatalf("a writer: %v", *err)
	}
}

// flooded starts the nodes of a pool, each a process, and writers.
func flooded(t testing.TB) (nodes []*child.Process, addrs []string, f *tcp.Fabric, w *works) {
	for range 3 {
		p := child.Start(t, "guarded")
		nodes, addrs = append(nodes, p), append(addrs, p.Line(t))
	}
	f = created(t, control.Options{Addresses: addrs, Security: full, Lease: time.Second}, geometry(3))
	return nodes, addrs, f, work(t, f, 4)
}

// flood attacks nodes by many more connections to each than there are buffers for long answers, and
// returns once each node has ended as many as there are such buffers.
func flood(t testing.TB, addrs []string) *child.Process {
	sofar := ended(t, addrs)
	attack := child.Start(t, "flood", addrs[0], "150")
	attack.Line(t)
	eventually(t, "the attack is under way", func() bool { return ended(t, addrs) >= sofar+memnode.LargeBuffers })
	return attack
}

// TestFlood: a holder of the read token attacks all nodes with hundreds of connections that ask for
// much and take nothing. Writers go on, and others get in, an administrator too; the nodes keep
// their leases, and take little memory. BenchmarkFlood tells how fast writers are.
func TestFlood(t *testing.T) {
	// of a node's memory: the budget for answers, connections, and what the collector has not found
	// yet
	const most = 96 << 20
	rounds := 2
	if long {
		rounds = 9
	}
	if descriptors() < 0 {
		t.Skip("needs /proc")
	}
	nodes, addrs, f, w := flooded(t)
	before := peakMemory(t, nodes[0])
	for range rounds {
		attack := flood(t, addrs)
		sofar := ended(t, addrs)
		w.goOn(t, 500)
		underAttack(t, addrs)
		eventually(t, "the attack goes on", func() bool { return ended(t, addrs) >= sofar+memnode.LargeBuffers })
		w.goOn(t, 500)
		attack.Kill()
	}
	w.end()
	after := peakMemory(t, nodes[0])
	infos, _ := control.Inspect(t.Context(), control.Options{Addresses: addrs, Security: full})
	t.Logf("a node takes %d MiB, %d under attack; it refused %d connections, and ended %d",
		before>>20, after>>20, infos[0].Stats.RefusedRoom, infos[0].Stats.Slow)
	if after > most && !teeth.UnderRace { // which makes a node several times as large
		t.Errorf("a node takes %d MiB, want at most %d", after>>20, most>>20)
	}
	for n, i := range infos {
		if i.Pool == nil || i.Expelled || i.Stats.Slow == 0 {
			t.Errorf("node %d behind the attack: %+v", n, i)
		}
	}
	if v := f.View(); v.Epoch != 0 {
		t.Errorf("the view has changed: %+v", v)
	}
}

// BenchmarkFlood compares writers' operations a second under the attack with those without, in
// turns of half a second.
func BenchmarkFlood(b *testing.B) {
	_, addrs, _, w := flooded(b)
	rate := func() float64 {
		sum := func() (all uint64) {
			for i := range w.done {
				all += w.done[i].Load()
			}
			return all
		}
		before, began := sum(), time.Now()
		time.Sleep(500 * time.Millisecond)
		return float64(sum()-before) / time.Since(began).Seconds()
	}
	var quiet, attacked float64
	for b.Loop() {
		quiet += rate()
		attack := flood(b, addrs)
		attacked += rate()
		attack.Kill()
	}
	if err := w.failed.Load(); err != nil {
		b.Fatal(*err)
	}
	b.ReportMetric(quiet/float64(b.N), "ops/s")
	b.ReportMetric(attacked/float64(b.N), "attacked-ops/s")
}

// ended is how many connections each node, at least, has ended or refused in the attack.
func ended(t testing.TB, addrs []string) uint64 {
	t.Helper()
	var all []uint64
	infos, errs := control.Inspect(t.Context(), control.Options{Addresses: addrs, Security: full})
	for n, i := range infos {
		if errs[n] != nil {
			t.Fatalf("look at node %d under attack: %v", n, errs[n])
		}
		all = append(all, i.Stats.Slow+i.Stats.RefusedRoom)
	}
	return slices.Min(all)
}

// underAttack wants nodes to have their leases, a new writer to get in, and an administrator.
func underAttack(t *testing.T, addrs []string) {
	t.Helper()
	admin := full
	admin.Admin = true
	infos, errs := control.Inspect(t.Context(), control.Options{Addresses: addrs, Security: admin})
	for n, i := range infos {
		if errs[n] != nil || i.Lease <= 0 || i.Expelled {
			t.Errorf("node %d under attack: lease %v, expelled %v, %v", n, i.Lease, i.Expelled, errs[n])
		}
	}
	for _, s := range []transport.Security{full, admin} {
		f, err := tcp.Open(control.Options{Addresses: addrs, Security: s})
		if err != nil {
			t.Errorf("open the pool under attack: %v", err)
			continue
		}
		ep, err := f.Open("another")
		if err != nil {
			t.Errorf("another writer under attack: %v", err)
		} else {
			for node := range addrs {
				if _, err := add(ep, node, 1024); err != nil {
					t.Errorf("another writer under attack: node %d: %v", node, err)
				}
			}
			ep.Close()
		}
		f.Close()
	}
}

// TestSlowReaders: a reader that takes none of its answers is disconnected within a second though
// there is room for them, and its place stays taken for a while; a writer that does the same is
// not, unless others wait for the room that its answers take.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	nodes, addrs, _ := guarded(t, 1, transport.Security{Token: token, ReadToken: readToken})
	f := created(t, control.Options{Addresses: addrs, Security: full}, geometry(1))
	stall := func(s transport.Security) {
		t.Helper()
		c, err := tcp.Stall(f.Record(), s, 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	stall(full)
	stall(readOnly)
	began := time.Now()
	eventually(t, "the reader is disconnected", func() bool { return nodes[0].Stats().Slow == 1 })
	// half a second to a second, on a machine that has the time
	if took := time.Since(began); took > memnode.WritePatience {
		t.Errorf("that took %v", took)
	}
	time.Sleep(1200 * time.Millisecond) // longer than a writer may be slow where others wait; and the reader has left
	if n := nodes[0].Room().Readers; n != memnode.DefaultConns/2-1 && time.Since(began) < memnode.SlowPenalty {
		t.Errorf("there is room for %d more readers behind it", n)
	}
	if n := nodes[0].Stats().Slow; n != 1 {
		t.Errorf("%d connections were ended, and one is a reader's", n)
	}
	for range memnode.LargeBuffers { // the last of these has to wait
		stall(full)
	}
	began = time.Now()
	eventually(t, "a writer is disconnected for others", func() bool {
		if n := nodes[0].Room().LongAnswers; n > memnode.LargeBuffers {
			t.Fatalf("%d connections have long answers under way", n)
		}
		return nodes[0].Stats().Slow > 1
	})
	// a second; a writer has ten where no other connection waits
	if took := time.Since(began); took > memnode.WritePatience {
		t.Errorf("that took %v", took)
	}
	ep := attach(t, f, "honest")
	b := ep.Batch()
	defer b.Release()
	long := b.Read(rdma.At(0, 0), 256<<10)
	if rdma.Do(ep, b, limit); long.Err != nil {
		t.Errorf("a long READ of a writer that takes its answers: %v", long.Err)
	}
}
