package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/ycsb"
)

// A Demo is a private pool on memory nodes of this machine, with processes that use it, to be
// watched and broken. Killed processes are replaced, and nodes as long as there are spares.
type Demo struct {
	Name string // of the pool

	program string
	running context.Context // until Close
	stop    context.CancelFunc
	beside  sync.WaitGroup // what goes on meanwhile
}

// The parts of a demo. Processes keep to a rate that any machine can bear.
const (
	demoNodes     = 3
	demoSpares    = 4
	demoRecords   = 20_000
	demoProcesses = 3
	demoThreads   = 4
	demoRate      = 600             // operations a second of a process
	demoPause     = time.Second     // before a process that ended is replaced
	demoStop      = 5 * time.Second // for a process to end before it is killed
	demoBreak     = 20 * time.Second
	// of a stop or a cut: one that lasts longer than a node is waited for costs a spare
	demoFault = 800 * time.Millisecond
)

// StartDemo makes the pool of a store, loads it, and starts processes that use it. program is the
// path of farkv. The caller closes the demo.
func StartDemo(ctx context.Context, program, store string) (*Demo, error) {
	d := &Demo{Name: fmt.Sprintf("demo-%d", os.Getpid()), program: program}
	kind, err := stores.Lookup(store)
	if err != nil {
		return nil, ops.Explain(err, d.Name)
	}
	by := ops.Starter{Program: program, Fabric: "tcp"}
	if _, err := ops.UpStarted(ctx, by, d.Name, store, demoPool(kind)); err != nil {
		return nil, err
	}
	if err := useDemo(ctx, d.Name, true, 1); err != nil {
		_, failed := ops.Down(d.Name, true, false)
		return nil, errors.Join(err, failed)
	}
	d.running, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	for i := range demoProcesses {
		d.beside.Go(func() { d.keep(d.running, uint64(i)+1) })
	}
	return d, nil
}

// demoPool is the shape of a demo's pool. There are no spares for stores in which clients go on
// with a majority, for stores with servers, for stores without recovery, and for stores with one
// copy.
func demoPool(k *stores.Kind) stores.Params {
	p := stores.Params{Nodes: demoNodes + demoSpares, Records: 2 * demoRecords, Clients: 128}
	if !k.Majority && k.Recoverer != nil && k.Serve == nil {
		spared := p
		spared.Spares, spared.IndexReplicas, spared.DataReplicas = demoSpares, 2, 2
		if sized := k.Size(spared); sized.Check(k) == nil {
			return spared
		}
	}
	return p
}

// demoKinds are the kinds of breaks in a demo: those with an effect that the monitor shows.
var demoKinds = []BreakKind{BreakNode, BreakClient, BreakMaster, BreakStop, BreakCut}

// BreakThings breaks something each 20 s until Close: nodes as long as there are spares, processes,
// connections.
func (d *Demo) BreakThings() {
	d.beside.Go(func() {
		for d.running.Err() == nil {
			s := Schedule{Kinds: demoKinds, Every: demoBreak, Fault: demoFault, For: math.MaxInt64, Seed: rand.Uint64()}
			// the pool's events tell what it did; a schedule that fails begins anew
			_, _ = RunSchedule(d.running, d.Name, s)
			ops.SleepUntil(d.running, time.Now().Add(demoPause))
		}
	})
}

// keep runs a process until ctx ends, and starts the next one when it dies.
func (d *Demo) keep(ctx context.Context, seed uint64) {
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, d.program, "demo-client", d.Name, strconv.FormatUint(seed, 10))
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = demoStop
		// The process ends with its standard input, which is this process's to close, however that
		// ends.
		if in, err := cmd.StdinPipe(); err == nil && cmd.Start() == nil {
			_ = cmd.Wait() // it was broken, or told to end
			in.Close()
		}
		ops.SleepUntil(ctx, time.Now().Add(demoPause))
	}
}

// Close ends the processes, and removes the pool.
func (d *Demo) Close() error {
	d.stop()
	d.beside.Wait()
	_, err := ops.Down(d.Name, true, false)
	return err
}

// DemoClient uses a demo's pool until ctx, or in, ends.
func DemoClient(ctx context.Context, in io.Reader, name string, seed uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return useDemo(ctx, name, false, seed)
}

// useDemo loads a demo's pool, or carries out YCSB's workload a on it until ctx ends.
func useDemo(ctx context.Context, name string, load bool, seed uint64) error {
	addr, err := ops.Resolve(name)
	if err != nil {
		return err
	}
	p, err := stores.Open(addr)
	if err != nil {
		return ops.Explain(err, addr)
	}
	store := p.Kind.Name
	if err := p.Close(); err != nil {
		return err
	}
	file, err := ycsb.Find("a")
	if err != nil {
		return err
	}
	command := drivers.Run
	if load {
		command = drivers.Load
	}
	all, err := file.Properties(map[string]string{
		"farkv.pool": addr, "command": command, "recordcount": strconv.Itoa(demoRecords), "operationcount": "0",
		"threadcount": strconv.Itoa(demoThreads), "seed": strconv.FormatUint(seed, 10), "fieldcount": "1",
		"fieldlength": "256",
	})
	if err != nil {
		return err
	}
	c, err := runner.Configure(all)
	if err != nil {
		return err
	}
	c.Name, c.Load = store, load
	if !load {
		c.Target = demoRate
	}
	db, err := drivers.Create(store, all)
	if err != nil {
		return err
	}
	c.Database = db
	r, err := runner.Run(ctx, c)
	if err == nil && load && r.Failed > 0 {
		err = fmt.Errorf("load the demo's pool: %w", r.Err())
	}
	return errors.Join(err, db.Close())
}
