package rtx_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/shm"
)

// errPoor ends a transfer of more than there is.
var errPoor = errors.New("not enough on the account")

// transfer moves an amount from one account to another.
func transfer(w *rtx.Worker, from, to rtx.Ref, amount uint64) error {
	return w.Run(func(tx *rtx.Tx) error {
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

// A transfer between accounts that no crash can halve: one client dies when it has decided, between
// the two accounts. Another one, which knows nothing of it, finds a lock that does not move, and
// finishes the transfer.
func Example() {
	const memory = 1 << 20
	pool, err := shm.NewMem(shm.Geometry{Nodes: 2, Memory: memory, Clients: 4}, node.Serve)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	layout, err := rtx.NewLayout(rtx.Shape{Nodes: 2, Memory: memory, Clients: 4, Roots: 2, Sizes: []int{8}})
	if err != nil {
		log.Fatal(err)
	}
	if err := rtx.Prepare(pool, layout); err != nil {
		log.Fatal(err)
	}
	ann, bob := layout.Root(0), layout.Root(1)

	open := func(name string, faults ...fault.Fault) *rtx.Worker {
		ep, err := pool.Open(name)
		if err != nil {
			log.Fatal(err)
		}
		w, err := rtx.Open(fault.New(ep, faults...), layout, rtx.Options{Timeout: 10 * time.Second})
		if err != nil {
			log.Fatal(err)
		}
		return w
	}
	alive, dies := open("alive"), open("dies", fault.Fault{Step: "swap pointers", Crash: fault.Stop})
	err = alive.Run(func(tx *rtx.Tx) error {
		return errors.Join(tx.Write(ann, binary.LittleEndian.AppendUint64(nil, 100)),
			tx.Write(bob, binary.LittleEndian.AppendUint64(nil, 0)))
	})
	if err != nil {
		log.Fatal(err)
	}
	err = transfer(dies, ann, bob, 70)
	fmt.Println("the client crashed:", errors.Is(err, rdma.ErrClosed))

	err = alive.Run(func(tx *rtx.Tx) error {
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
	fmt.Println(err, alive.Stats().Finished)
	fmt.Println(errors.Is(transfer(alive, ann, bob, 31), errPoor))
	// Output:
	// the client crashed: true
	// 30 70
	// <nil> 1
	// true
}
