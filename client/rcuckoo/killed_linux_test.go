package rcuckoo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"golang.org/x/sync/errgroup"
)

// Some processes work on one pool, each with some workers. A worker alone writes its keys, and so knows what they are; the other
// keys everybody writes. Processes are killed again and again, and others take their places.
const (
	killedEnv   = "FARKV_RCUCKOO_KILLED" // tells a test binary that it is one of the processes, as JSON of doomed
	killedSlots = 3
	killedWork  = 2  // workers of a process
	killedKeys  = 20 // of a worker
	sharedKeys  = 4
	killsAtOnce = 7 // of a slot in a round, behind which all is checked
)

// doomed is one of the processes, the generation-th in its place.
type doomed struct {
	Pool       string
	Slot       int
	Generation int
}

// killedPool is so full that INSERTs move others' keys.
func killedPool() Params {
	p := extentPool(2)
	p.Rows, p.RowsPerLock, p.LockWords, p.Slabs, p.SlabExtents = 10, 1, 2, 30, 8
	return p
}

// patience is a failure timer for machines that stop workers for a while, who are not to be fenced off for that.
const patience = 2 * time.Second

func killedKey(i int) []byte { return fmt.Appendf(nil, "key %d", i) }

// killedValue is what a write of a key writes: bytes that no other write does.
func killedValue(key, seq int) []byte {
	rng := rand.New(rand.NewPCG(uint64(key), uint64(seq)))
	p := make([]byte, 8+rng.IntN(9))
	if rng.IntN(2) == 0 {
		p = make([]byte, 8+rng.IntN(900))
	}
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	le.PutUint64(p, uint64(seq))
	return p
}

// written returns which write of a key a value is, or an error when it is none.
func written(key int, value []byte) (int, error) {
	if len(value) < 8 || !bytes.Equal(value, killedValue(key, int(le.Uint64(value)))) {
		return 0, fmt.Errorf("key %d has a value that nobody wrote: %x", key, value)
	}
	return int(le.Uint64(value)), nil
}

// state returns which write of a key is the last one; 0: the key is not there.
func state(s *Store, key int) (int, error) {
	v, err := s.Get(killedKey(key))
	if errors.Is(err, client.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return written(key, v)
}

// TestKilled kills processes in the midst of what they do, a thousand with FARKV_LONG: nothing that they said was done is undone, nothing
// else appears, and once a keeper has recovered them nothing waits and nothing is lost.
func TestKilled(t *testing.T) {
	if text := os.Getenv(killedEnv); text != "" {
		var d doomed
		must(t, json.Unmarshal([]byte(text), &d))
		must(t, d.work())
		return
	}
	rounds := 1
	if os.Getenv("FARKV_LONG") == "1" {
		rounds = 48
	}
	p := killedPool()
	l, err := newLayout(p, 2)
	must(t, err)
	pool := fmt.Sprintf("rcuckoo-killed-%d", os.Getpid())
	f, err := shm.Create(pool, shm.Geometry{Nodes: 2, Memory: l.bytes, Clients: p.Clients}, node.Serve, func(f *shm.Fabric) error { return Make(f, p) })
	must(t, err)
	defer func() { must(t, errors.Join(f.Close(), shm.Remove(pool, true))) }()
	r := newRegisters()
	begin := time.Now()
	for round := range rounds {
		// In one round of two a keeper recovers at once whoever died; else those that live do what they wait for.
		if err := killRound(f, r, pool, round, round%2 == 1); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
	t.Logf("%d processes were killed, in the midst of %d writes, in %v; %d writes were acknowledged", r.kills.Load(), r.doubts.Load(), time.Since(begin).Round(time.Millisecond), r.acks.Load())
	if r.kills.Load() < uint64(rounds*killedSlots*killsAtOnce) || r.doubts.Load() == 0 || r.acks.Load() < r.kills.Load() {
		t.Error("that shows little")
	}
}

// killRound kills some processes in each place, recovers, and checks.
func killRound(f *shm.Fabric, r *registers, pool string, round int, kept bool) error {
	var g errgroup.Group
	for slot := range killedSlots {
		g.Go(func() error {
			rng := rand.New(rand.NewPCG(uint64(round), uint64(slot)))
			for i := range killsAtOnce {
				d := doomed{pool, slot, round*killsAtOnce + i + 1}
				if err := d.run(r, time.Duration(rng.Int64N(int64(4*time.Millisecond)))); err != nil {
					return fmt.Errorf("process %d in place %d: %w", d.Generation, slot, err)
				}
				if kept && slot == 0 { // it recovers those of the other places, too
					if err := recoverAll(f); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := recoverAll(f); err != nil {
		return err
	}
	ep, err := f.Open("auditor")
	if err != nil {
		return err
	}
	s, err := Open(ep, Options{Pool: f, Failure: patience})
	if err != nil {
		return err
	}
	if err := errors.Join(r.audit(s), s.Close(), ep.Close()); err != nil {
		return err
	}
	report, err := Check(f)
	if err == nil && len(report.Damage)+len(report.Waiting) > 0 {
		err = fmt.Errorf("damage: %q, waiting: %q", report.Damage, report.Waiting)
	}
	return err
}

// recoverAll does what a keeper does for those who died.
func recoverAll(f *shm.Fabric) error {
	ep, err := f.Open("keeper")
	if err != nil {
		return err
	}
	_, err = cluster.Once(ep, f, func(ep rdma.Endpoint) (cluster.Mender, error) { return NewMender(ep) }, cluster.Options{Lease: 300 * time.Millisecond})
	return errors.Join(err, ep.Close())
}

// registers are what the workers' own keys may be: the last write that was acknowledged, or one behind it of which it is not known
// what became of it. A key belongs to one place, and so to one goroutine at a time.
type registers struct {
	may                 [][]int // by key; 0: it is not there
	kills, doubts, acks atomic.Uint64
}

func newRegisters() *registers {
	r := &registers{may: make([][]int, killedSlots*killedWork*killedKeys)}
	for i := range r.may {
		r.may[i] = []int{0}
	}
	return r
}

// note reads what a process said about its writes until it was killed: "b KEY WRITE" before each, "a KEY WRITE" behind it, where a
// write of 0 deletes. What it refused is as if it had not begun: "r KEY 0".
func (r *registers) note(lines []byte) error {
	begun := map[int]int{}
	for line := range bytes.Lines(lines) {
		var what rune
		var key, seq int
		if _, err := fmt.Sscanf(string(line), "%c %d %d\n", &what, &key, &seq); err != nil {
			continue // the last one, in the midst of which it was killed
		}
		switch what {
		case 'b':
			begun[key] = seq
		case 'a':
			delete(begun, key)
			r.may[key] = []int{seq}
			r.acks.Add(1)
		case 'r':
			delete(begun, key)
		default:
			return fmt.Errorf("it says %q", line)
		}
	}
	for key, seq := range begun {
		r.may[key] = append(r.may[key], seq)
		r.doubts.Add(1)
	}
	return nil
}

// audit reads all keys when everybody was recovered: what they are then they stay.
func (r *registers) audit(s *Store) error {
	for key, may := range r.may {
		is, err := state(s, key)
		if err != nil {
			return err
		}
		if !slices.Contains(may, is) {
			return fmt.Errorf("key %d is as write %d left it, and may be as one of %d", key, is, may)
		}
		r.may[key] = []int{is}
	}
	for i := range sharedKeys {
		if _, err := state(s, len(r.may)+i); err != nil {
			return err
		}
	}
	return nil
}

// run starts the process and kills it a while after it has acknowledged its first write.
func (d doomed) run(r *registers, after time.Duration) error {
	p, err := json.Marshal(d)
	if err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$", "-test.count=1")
	cmd.Env = append(os.Environ(), killedEnv+"="+string(p))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	hung := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer hung.Stop()
	var said bytes.Buffer
	lines := bufio.NewReader(out)
	for killing := false; ; {
		line, err := lines.ReadBytes('\n')
		said.Write(line)
		if err != nil {
			break
		}
		if !killing && line[0] == 'a' {
			killing = true
			time.AfterFunc(after, func() { cmd.Process.Kill() })
		}
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() >= 0 || !hung.Stop() {
		return fmt.Errorf("it was not to end by itself: %w\n%s\n%s", err, &errs, said.Bytes()[max(0, said.Len()-500):])
	}
	r.kills.Add(1)
	return r.note(said.Bytes())
}

// work is what a process does until it is killed.
func (d doomed) work() error {
	f, err := shm.Open(d.Pool, node.Serve)
	if err != nil {
		return err
	}
	var g errgroup.Group
	for w := range killedWork {
		ep, err := f.Open("doomed")
		if err != nil {
			return err
		}
		s, err := Open(ep, Options{Pool: f, Failure: patience})
		if err != nil {
			return err
		}
		g.Go(func() error { return d.worker(s, w) })
	}
	return g.Wait()
}

func (d doomed) worker(s *Store, w int) error {
	first := (d.Slot*killedWork + w) * killedKeys
	rng := rand.New(rand.NewPCG(uint64(d.Generation), uint64(first)))
	is := map[int]int{} // what the worker left its keys
	for seq := d.Generation<<20 | w<<19; ; seq++ {
		if rng.IntN(8) == 0 {
			if err := d.share(s, killedSlots*killedWork*killedKeys+rng.IntN(sharedKeys), seq<<2|d.Slot); err != nil {
				return err
			}
			continue
		}
		key := first + rng.IntN(killedKeys)
		now, err := state(s, key)
		if err != nil {
			return err
		}
		if was, ok := is[key]; ok && was != now {
			return fmt.Errorf("key %d is as write %d left it, and was as %d did", key, now, was)
		}
		next := seq
		if now != 0 && rng.IntN(4) == 0 {
			next = 0
		}
		fmt.Printf("b %d %d\n", key, next)
		switch {
		case now == 0:
			err = s.Insert(killedKey(key), killedValue(key, next))
		case next == 0:
			err = s.Delete(killedKey(key))
		default:
			err = s.Update(killedKey(key), killedValue(key, next))
		}
		_, known := is[key]
		switch {
		case err == nil:
			fmt.Printf("a %d %d\n", key, next)
			is[key] = next
		case errors.Is(err, client.ErrFull), !known && (errors.Is(err, client.ErrExists) || errors.Is(err, client.ErrNotFound)):
			fmt.Printf("r %d 0\n", key) // what the one before had begun there was brought to its end meanwhile, or there is no room
		default:
			return fmt.Errorf("key %d: %w", key, err)
		}
	}
}

// share writes a key that others write, too.
func (d doomed) share(s *Store, key, seq int) error {
	_, err := state(s, key)
	if err == nil {
		err = s.Update(killedKey(key), killedValue(key, seq))
	}
	if errors.Is(err, client.ErrNotFound) {
		err = s.Insert(killedKey(key), killedValue(key, seq))
	}
	if errors.Is(err, client.ErrExists) || errors.Is(err, client.ErrFull) {
		err = nil
	}
	return err
}
