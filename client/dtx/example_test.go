package dtx_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/shm"
)

// errPoor ends a transfer of more than there is.
var errPoor = errors.New("not enough on the account")

// transfer moves an amount from one account to another.
func transfer(w *dtx.Worker, from, to dtx.Ref, amount uint64) error {
	return w.Run(func(tx *dtx.Tx) error {
		a, err := tx.Read(from)
		if err != nil {
			return err
		}
		b, err := tx.Read(to)
		if err != nil {
			return err
		}
		has, gets := binary.LittleEndian.Uint64(a), binary.LittleEndian.Uint64(b)
		if has < amount {
			return errPoor
		}
		if err := tx.Write(from, binary.LittleEndian.AppendUint64(nil, has-amount)); err != nil {
			return err
		}
		return tx.Write(to, binary.LittleEndian.AppendUint64(nil, gets+amount))
	})
}

// A client dies when it has written its log, before the accounts. Others find them locked, and
// wait, until the pool's master has recovered it: here the example itself, and in a pool with a
// keeper a dtx.Recoverer.
func Example() {
	const memory = 1 << 20
	pool, err := shm.NewMem(shm.Geometry{Nodes: 2, Memory: memory, Clients: 4}, node.Serve)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	layout, err := dtx.NewLayout(dtx.Shape{Nodes: 2, Memory: memory, Clients: 4, Roots: 2, Sizes: []int{8}})
	if err != nil {
		log.Fatal(err)
	}
	if err := dtx.Prepare(pool, layout); err != nil {
		log.Fatal(err)
	}
	ann, bob := layout.Root(0), layout.Root(1)

	open := func(name string, timeout time.Duration, faults ...fault.Fault) (*dtx.Worker, rdma.ClientID) {
		ep, err := pool.Open(name)
		if err != nil {
			log.Fatal(err)
		}
		w, err := dtx.Open(fault.New(ep, faults...), layout, dtx.Options{Timeout: timeout})
		if err != nil {
			log.Fatal(err)
		}
		return w, ep.Client()
	}
	alive, _ := open("alive", 100*time.Millisecond)
	dies, dead := open("dies", time.Minute, fault.Fault{Step: "write and unlock", Crash: fault.Stop})
	master, _ := open("master", time.Minute)
	err = master.Run(func(tx *dtx.Tx) error {
		return errors.Join(tx.Write(ann, binary.LittleEndian.AppendUint64(nil, 100)),
			tx.Write(bob, binary.LittleEndian.AppendUint64(nil, 0)))
	})
	if err != nil {
		log.Fatal(err)
	}
	err = transfer(dies, ann, bob, 70)
	fmt.Println("the client crashed:", errors.Is(err, rdma.ErrClosed))
	fmt.Println("others wait:", errors.Is(transfer(alive, ann, bob, 1), rdma.ErrTimeout))

	if err := errors.Join(pool.Revoke(dead), master.Recover(dead)); err != nil {
		log.Fatal(err)
	}
	err = master.Run(func(tx *dtx.Tx) error {
		a, err := tx.Read(ann)
		if err != nil {
			return err
		}
		b, err := tx.Read(bob)
		if err != nil {
			return err
		}
		fmt.Println(binary.LittleEndian.Uint64(a), binary.LittleEndian.Uint64(b))
		return nil
	})
	fmt.Println(err, master.Stats().Replayed)
	// Output:
	// the client crashed: true
	// others wait: true
	// 30 70
	// <nil> 1
}
