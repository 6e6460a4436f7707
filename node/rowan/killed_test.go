package rowan_test

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rowan"
)

// killLog is the log of TestKilled, of two processes of senders with some sources each.
var killLog = rowan.Options{
	Ring: 2, Segments: 24, SegmentBytes: 16 << 10, Ahead: 8, Reserve: 1, Sources: 2 * killSources, Credit: 8 << 10,
	Secret: secret,
}

const (
	killSources = 3
	killEntries = 60 // of each source in a run
)

// killMemory is a node's, in whole pages.
var killMemory = (killLog.Size() + 4095) &^ 4095

// childMain is the main of another process of TestKilled.
func childMain(args []string) error {
	if args[0] == "node" {
		return childNode(args[1], args[2])
	}
	f, err := insist(func() (*tcp.Fabric, error) { return tcp.Open(control.Options{Addresses: args[1:2]}) })
	if err != nil {
		return err
	}
	if args[0] == "receive" {
		err = childReceive(f, args[2])
	} else {
		err = childSend(f, args[2], args[3:])
	}
	if left := f.Close(); !away(left) { // else it is forgotten as one that is dead
		err = errors.Join(err, left)
	}
	return err
}

// away reports whether an error says that the node is being killed.
func away(err error) bool {
	return errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrUnreachable)
}

// insist calls f until the node is there.
func insist[T any](f func() (T, error)) (x T, err error) {
	for until := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if x, err = f(); !away(err) || time.Now().After(until) {
			return x, err
		}
	}
}

// childNode is a node that remembers, until its input ends.
func childNode(listen, file string) error {
	r, err := pmem.Open(file, pmem.Options{Memory: killMemory, Table: memnode.TableBytes(killMemory)})
	if err != nil {
		return err
	}
	n, err := memnode.Listen(memnode.Config{Listen: listen, Memory: killMemory, Region: r})
	if err != nil {
		return err
	}
	fmt.Println(n.Addr())
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, n.Close())
}

// childReceive receives until its input ends: as another receiver each time the ring has ended,
// with the connection.
func childReceive(f rdma.Fabric, name string) error {
	ep, err := insist(func() (rdma.Endpoint, error) { return f.Open(name) })
	if err != nil {
		return err
	}
	var over atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		over.Store(true)
	}()
	for !over.Load() {
		err := receiveUntil(ep, &over)
		if err != nil && !away(err) && !errors.Is(err, rdma.ErrClosed) {
			return err
		}
		ep.Sleep(time.Millisecond)
	}
	return nil
}

// receiveUntil prints what it digests before it gives the segments back.
func receiveUntil(ep rdma.Endpoint, over *atomic.Bool) error {
	out := bufio.NewWriter(os.Stdout)
	seen := order{}
	note := func(e *rowan.Entry) error {
		fmt.Fprintln(out, "kept", e.Source, binary.LittleEndian.Uint64(e.Data))
		return seen.check(e)
	}
	r, err := rowan.Open(ep, killLog)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // if the node does not answer the ring has ended with it, or does with the process
	held, err := r.Recover(func(_ rowan.Segment, e *rowan.Entry) error { return note(e) })
	if err != nil {
		return err
	}
	seen.complete = true
	for !over.Load() {
		if err := out.Flush(); err != nil {
			return err
		}
		for _, seg := range held {
			r.Free(seg)
		}
		held = held[:0]
		if err := r.Step(); err != nil {
			return err
		}
		for seg, ok := r.Next(); ok; seg, ok = r.Next() {
			if err := r.Digest(seg, note); err != nil {
				return err
			}
			held = append(held, seg)
		}
		ep.Sleep(50 * time.Microsecond)
	}
	return out.Flush()
}

// order is how far a receiver has seen each source's entries.
type order struct {
	number, stamp [2 * killSources]uint64 // the last one's, plus one
	// complete: none is missing from here on. Of the segments that an earlier receiver left, some
	// may be free.
	complete bool
}

// check returns an error when an entry is not whole, or does not come behind the one before.
func (o *order) check(e *rowan.Entry) error {
	number, s := binary.LittleEndian.Uint64(e.Data), e.Source
	want := fill(make([]byte, lengths[number%uint64(len(lengths))]), int(s), int(number))
	next := o.number[s]
	switch {
	case string(want) != string(e.Data):
		return fmt.Errorf("entry %d of source %d is not what was appended", number, s)
	case e.Stamp < o.stamp[s] || next > 0 && number+1 < next || o.complete && next > 0 && number > next:
		return fmt.Errorf("entry %d of source %d with stamp %d comes behind %d with stamp %d", number, s, e.Stamp,
			next-1, o.stamp[s]-1)
	}
	o.number[s], o.stamp[s] = number+1, e.Stamp+1
	return nil
}

// childSend appends entries of some sources, from the number on that is given for each, and prints
// what is acknowledged.
func childSend(f rdma.Fabric, name string, args []string) error {
	first, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	term, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	var errs [killSources]error
	for i := range killSources {
		var from, to int
		if _, err := fmt.Sscanf(args[2+i], "%d-%d", &from, &to); err != nil {
			return err
		}
		group.Go(func() { errs[i] = sendFrom(f, name, first+i, term, from, to) })
	}
	group.Wait()
	return errors.Join(errs[:]...)
}

func sendFrom(f rdma.Fabric, name string, source int, term uint64, from, to int) error {
	ep, err := insist(func() (rdma.Endpoint, error) { return f.Open(name) })
	if err != nil {
		return err
	}
	o := senderOptions(killLog, source)
	o.Above = term << 32
	s, err := insist(func() (*rowan.Sender, error) { return rowan.NewSender(ep, o) })
	for i := from; i < to && err == nil; i++ {
		data := fill(make([]byte, lengths[i%len(lengths)]), source, i)
		if _, err = insist(func() (any, error) { return nil, s.Append(1, data, patience) }); err == nil {
			fmt.Println("acked", source, i)
		}
	}
	if left := ep.Close(); !away(left) {
		err = errors.Join(err, left)
	}
	return err
}

// killing is a pool of one node, with a log that goes on from run to run.
type killing struct {
	t     *testing.T
	f     *tcp.Fabric
	rnd   *rand.Rand
	node  *child.Process
	addr  string
	file  string
	runs  int
	hits  int // of them, in which the victim was in the midst of it
	terms int // processes of senders

	mu    sync.Mutex
	acked [2 * killSources]int // entries of each source, from the first one on
	kept  map[[2]int]bool      // entries that a receiver digested, by source and number
	wrong error
}

// worker is another process, what it says being noted until it ends.
type worker struct {
	*child.Process
	name string
	end  chan struct{} // closed when all that it said is noted
}

func (k *killing) start(role, name string, args ...string) *worker {
	w := &worker{child.Start(k.t, append([]string{role, k.addr, name}, args...)...), name, make(chan struct{})}
	go func() {
		defer close(w.end)
		for {
			line, err := w.Next()
			if line != "" {
				k.note(name, line)
			}
			if err != nil {
				return
			}
		}
	}()
	return w
}

func (k *killing) note(name, line string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var source, number int
	if _, err := fmt.Sscanf(line, "kept %d %d", &source, &number); err == nil {
		k.kept[[2]int{source, number}] = true
		return
	}
	if _, err := fmt.Sscanf(line, "acked %d %d", &source, &number); err != nil || number != k.acked[source] {
		k.wrong = errors.Join(k.wrong, fmt.Errorf("%s: %s", name, line))
		return
	}
	k.acked[source]++
}

// kill kills a process, and fences its workers off.
func (k *killing) kill(w *worker) {
	_ = w.Process.Process.Kill()
	<-w.end
	w.Process.Kill() // waits
	k.eventually("fence off "+w.name, func() error {
		all, err := k.f.ListClients()
		for _, c := range all {
			if c.Name == w.name {
				err = errors.Join(err, k.f.RevokeLife(c))
			}
		}
		return err
	})
}

// forget gives the identities of workers back that are dead, as far as that is known yet.
func (k *killing) forget() {
	k.eventually("forget the dead", func() error {
		all, err := k.f.ListClients()
		for _, c := range all {
			if c.Alive {
				continue
			}
			if f := k.f.Forget(c); !errors.Is(f, rdma.ErrHeld) {
				err = errors.Join(err, f)
			}
		}
		return err
	})
}

func (k *killing) eventually(what string, f func() error) {
	k.t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			k.t.Fatalf("run %d: %s: %v", k.runs, what, err)
		}
	}
}

func (k *killing) receive() *worker {
	return k.start("receive", fmt.Sprint("receiver-", k.rnd.Uint64()))
}

// send starts a process of sources that append up to a number of this run.
func (k *killing) send(process int) *worker {
	k.terms++
	first := process * killSources
	args := []string{strconv.Itoa(first), strconv.Itoa(k.terms)}
	k.mu.Lock()
	for i := range killSources {
		args = append(args, fmt.Sprintf("%d-%d", k.acked[first+i], (k.runs+1)*killEntries))
	}
	k.mu.Unlock()
	return k.start("send", fmt.Sprint("sender-", k.rnd.Uint64()), args...)
}

func (k *killing) startNode() {
	k.eventually("start the node", func() error {
		k.node = child.Start(k.t, "node", k.addr, k.file)
		_, err := k.node.Next()
		return err
	})
}

// run has all sources append, kills a process in the midst of it, starts another one, and looks at
// what is in the log.
func (k *killing) run() {
	receiver := k.receive()
	senders := [2]*worker{k.send(0), k.send(1)}
	k.mu.Lock()
	before := k.acked
	k.mu.Unlock()
	k.eventually("the first entries", func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.acked == before && k.wrong == nil {
			return errors.New("none is acknowledged")
		}
		return k.wrong
	})
	time.Sleep(time.Duration(k.rnd.IntN(12_000)) * time.Microsecond)
	k.mu.Lock()
	if slices.Min(k.acked[:]) < (k.runs+1)*killEntries {
		k.hits++
	}
	k.mu.Unlock()
	switch k.runs % 4 {
	case 0:
		i := k.runs / 4 % 2
		k.kill(senders[i])
		senders[i] = k.send(i)
	case 1:
		k.kill(receiver)
		receiver = k.receive()
	case 2: // the node alone: a receiver begins anew
		k.node.Kill()
		k.startNode()
	case 3: // the machine that is both
		_ = receiver.Process.Process.Kill()
		k.node.Kill()
		k.startNode()
		k.kill(receiver)
		receiver = k.receive()
	}
	for _, s := range senders {
		k.end(s)
	}
	receiver.Release()
	k.end(receiver)
	k.eventually("look at what is left", k.recover)
	k.judge()
	k.forget()
	k.runs++
}

// end waits for the end of a worker, which has nothing to complain of.
func (k *killing) end(w *worker) {
	k.t.Helper()
	<-w.end
	k.mu.Lock()
	err := k.wrong
	k.mu.Unlock()
	if err != nil {
		k.t.Fatalf("run %d: %v", k.runs, err)
	}
	w.End(k.t)
}

// recover looks at what is left in the log, as a receiver that comes next.
func (k *killing) recover() error {
	ep, err := k.f.Open("judge")
	if err != nil {
		return err
	}
	defer ep.Close()
	seen := order{}
	r, err := rowan.Open(ep, killLog)
	if err == nil {
		_, err = r.Recover(func(_ rowan.Segment, e *rowan.Entry) error {
			k.kept[[2]int{int(e.Source), int(binary.LittleEndian.Uint64(e.Data))}] = true
			if err := seen.check(e); err != nil {
				k.t.Fatalf("run %d: %v", k.runs, err)
			}
			return nil
		})
	}
	return err
}

// judge compares what was acknowledged with what receivers digested, and what is left in the log.
func (k *killing) judge() {
	for source, n := range k.acked {
		if n != (k.runs+1)*killEntries {
			k.t.Fatalf("run %d: of source %d %d entries are acknowledged", k.runs, source, n)
		}
		for number := range n {
			if !k.kept[[2]int{source, number}] {
				k.t.Fatalf("run %d: entry %d of source %d was acknowledged, and is lost", k.runs, number, source)
			}
		}
	}
	if n := len(k.acked) * (k.runs + 1) * killEntries; len(k.kept) != n {
		k.t.Fatalf("run %d: %d entries are there, and %d were appended", k.runs, len(k.kept), n)
	}
}

// TestKilled kills, by SIGKILL, a process of senders, the receiver, the node that remembers, or
// both, again and again while entries are appended over tcp: none is lost that is acknowledged, all
// are whole, and each source's come in its order.
func TestKilled(t *testing.T) {
	pools, runs := 2, 4
	if os.Getenv("FARKV_LONG") == "1" {
		pools, runs = 4, 250
	}
	for i := range pools {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			k := &killing{
				t: t, rnd: rand.New(rand.NewPCG(uint64(i), 17)), file: filepath.Join(t.TempDir(), "pmem"),
				kept: map[[2]int]bool{}, addr: child.Address(t),
			}
			k.startNode()
			var err error
			k.f, err = tcp.Create(control.Options{Addresses: []string{k.addr}, Lease: 30 * time.Millisecond, MTU: mtu},
				control.Geometry{Nodes: 1, Memory: killMemory, Clients: 64}, nil)
			if err != nil {
				t.Fatal(err)
			}
			for range runs {
				k.run()
			}
			if err := k.f.Close(); err != nil {
				t.Error(err)
			}
			t.Logf("%d runs, in %d of which a process died in the midst of appends", k.runs, k.hits)
		})
	}
}
