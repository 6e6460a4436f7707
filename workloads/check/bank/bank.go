// Package bank is what a library of transactions over objects must pass: clients move amounts
// between accounts, which come and go, and the history of what they saw must be that of some order
// of the transactions. Package rtx and package dtx pass it, in virtual time, behind crashes at
// every verb, and on shared memory.
package bank

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

var le = binary.LittleEndian

// Tx is a transaction over objects that an R names.
type Tx[R ~uint64] interface {
	Read(r R) ([]byte, error)
	Write(r R, data []byte) error
	New(data []byte) (R, error)
	Free(r R) error
	Lock(r R) error
}

// Client runs transactions, one at a time.
type Client[R ~uint64] interface {
	// Run runs a transaction, as rtx.Worker does.
	Run(f func(tx Tx[R]) error) error
	// Read is told of each object that the transaction before has read.
	Read(r R)
	// Now is the client's time.
	Now() time.Duration
}

// Bank is a pool of accounts: roots, and others that come and go, which the last root lists.
// Transfers keep the sum. Each object holds which transaction wrote it, its balance, and the list.
// It is safe for concurrent use by several clients.
type Bank[R ~uint64] struct {
	Root     func(i int) R // root i; account i is root i, and the one behind them has the list
	Accounts int
	NoObject error                // what a Read of an object that is not there wraps
	Clock    func() time.Duration // the same for all clients, whatever their own show; nil: theirs agree
	Pad      int                  // bytes more of each object

	history[R]
	mu    sync.Mutex // guards history, ids and wrong
	ids   uint64
	wrong error // what a closure saw that never was
}

const (
	startBalance = 100
	mostListed   = 4 // accounts that the last root lists
)

// List returns the object that lists the accounts that come and go.
func (k *Bank[R]) List() R { return k.Root(k.Accounts) }

// Events returns how many transactions there were.
func (k *Bank[R]) Events() int { return len(k.events) }

type account[R ~uint64] struct {
	by      uint64
	balance uint64
	list    []R
}

func (k *Bank[R]) encode(a account[R]) []byte {
	p := le.AppendUint64(nil, a.by)
	p = le.AppendUint64(p, a.balance)
	p = le.AppendUint64(p, uint64(len(a.list)))
	for _, r := range a.list {
		p = le.AppendUint64(p, uint64(r))
	}
	return append(p, make([]byte, k.Pad)...)
}

func decode[R ~uint64](p []byte) (a account[R]) {
	a.by, a.balance = le.Uint64(p), le.Uint64(p[8:])
	for i := range le.Uint64(p[16:]) {
		a.list = append(a.list, R(le.Uint64(p[24+8*i:])))
	}
	return a
}

// Found makes the accounts.
func (k *Bank[R]) Found(w Client[R]) error {
	return w.Run(func(tx Tx[R]) error {
		for i := range k.Accounts {
			if err := tx.Write(k.Root(i), k.encode(account[R]{balance: startBalance})); err != nil {
				return err
			}
		}
		return tx.Write(k.List(), k.encode(account[R]{}))
	})
}

// View is a closure's: its methods are what a transaction does, and note that.
type View[R ~uint64] struct {
	*Bank[R]
	*event[R]
	tx Tx[R]
}

func (v *View[R]) get(r R) (account[R], error) {
	p, err := v.tx.Read(r)
	if err != nil {
		if errors.Is(err, v.NoObject) {
			v.saw("an account that is listed is not there: %w", err)
		}
		return account[R]{}, err
	}
	a := decode[R](p)
	if _, ok := v.reads[r]; !ok && !v.made[r] {
		v.reads[r] = a.by
	}
	return a, nil
}

// Lock locks an object early.
func (v *View[R]) Lock(r R) error { return v.tx.Lock(r) }

// Look reads an object.
func (v *View[R]) Look(r R) error {
	_, err := v.get(r)
	return err
}

// saw notes what never was.
func (v *View[R]) saw(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.wrong == nil {
		v.wrong = fmt.Errorf("%s: "+format, append([]any{v.client}, args...)...)
	}
}

func (v *View[R]) put(r R, a account[R]) error {
	a.by = v.id
	v.writes[r] = false
	return v.tx.Write(r, v.encode(a))
}

// Run runs one transaction of a client, which has a name in the history.
func (k *Bank[R]) Run(w Client[R], name string, f func(v *View[R]) error) error {
	k.mu.Lock()
	k.ids++
	e := &event[R]{id: k.ids, client: name, begin: k.Now(w)}
	k.events = append(k.events, e)
	k.mu.Unlock()
	err := w.Run(func(tx Tx[R]) error {
		e.reads, e.writes, e.made = map[R]uint64{}, map[R]bool{}, map[R]bool{}
		return f(&View[R]{k, e, tx})
	})
	for r := range e.reads {
		w.Read(r)
	}
	switch {
	case err == nil:
		e.done, e.end = true, k.Now(w)
	case !errors.Is(err, client.ErrUncertain) && !errors.Is(err, rdma.ErrClosed):
		e.refused, e.end = true, k.Now(w)
	}
	return err
}

// Now returns the time of the history.
func (k *Bank[R]) Now(w Client[R]) time.Duration {
	if k.Clock != nil {
		return k.Clock()
	}
	return w.Now()
}

// ErrNothing ends a transaction that has nothing to do.
var ErrNothing = errors.New("nothing to do")

// Act does something at random.
func (k *Bank[R]) Act(w Client[R], name string, rng *rand.Rand) error {
	a, b := k.Root(rng.IntN(k.Accounts)), k.Root(rng.IntN(k.Accounts))
	amount, pick, lock := rng.Uint64N(10), rng.IntN(mostListed), rng.IntN(3) == 0
	kind := rng.IntN(11)
	err := k.Run(w, name, func(v *View[R]) error {
		if lock {
			if err := v.tx.Lock(a); err != nil {
				return err
			}
		}
		switch kind {
		case 0, 1:
			return v.Transfer(a, b, amount)
		case 2, 3:
			return v.Touch(a)
		case 4:
			return v.Sum()
		case 5, 6:
			return v.Make(a, amount)
		case 7, 8:
			return v.Drop(a, pick)
		case 9:
			return v.TouchListed(pick)
		}
		return errors.Join(v.Look(b), v.Touch(a)) // two of which are serializable if one sees the other
	})
	if errors.Is(err, ErrNothing) {
		return nil
	}
	return err
}

// Transfer moves an amount from one account to another; ErrNothing: there is less.
func (v *View[R]) Transfer(from, to R, amount uint64) error {
	a, err := v.get(from)
	if err != nil {
		return err
	}
	if a.balance < amount {
		return ErrNothing
	}
	a.balance -= amount
	if err := v.put(from, a); err != nil {
		return err
	}
	b, err := v.get(to) // what was written, where it is the same
	if err != nil {
		return err
	}
	b.balance += amount
	return v.put(to, b)
}

// Touch changes one object.
func (v *View[R]) Touch(r R) error {
	a, err := v.get(r)
	if err != nil {
		return err
	}
	return v.put(r, a)
}

// TouchListed changes one of the accounts that are listed.
func (v *View[R]) TouchListed(pick int) error {
	list, err := v.get(v.List())
	if err != nil {
		return err
	}
	if pick >= len(list.list) {
		return ErrNothing
	}
	return v.Touch(list.list[pick])
}

// Sum reads all accounts. What they have together is known, whether the transaction commits or not.
func (v *View[R]) Sum() error {
	list, err := v.get(v.List())
	if err != nil {
		return err
	}
	sum := uint64(0)
	for i := range v.Accounts {
		a, err := v.get(v.Root(i))
		if err != nil {
			return err
		}
		sum += a.balance
	}
	for _, r := range list.list {
		a, err := v.get(r)
		if err != nil {
			return err
		}
		sum += a.balance
	}
	if want := uint64(v.Accounts) * startBalance; sum != want {
		v.saw("all accounts have %d, not %d", sum, want)
	}
	return nil
}

// Make makes an account, and moves something there.
func (v *View[R]) Make(from R, amount uint64) error {
	list, err := v.get(v.List())
	if err != nil {
		return err
	}
	a, err := v.get(from)
	if err != nil {
		return err
	}
	if a.balance < amount || len(list.list) == mostListed {
		return ErrNothing
	}
	a.balance -= amount
	r, err := v.tx.New(v.encode(account[R]{by: v.id, balance: amount}))
	if err != nil {
		return err
	}
	v.made[r], v.writes[r] = true, false
	list.list = append(list.list, r)
	return errors.Join(v.put(from, a), v.put(v.List(), list))
}

// Drop frees one of the accounts that are listed, and moves what is there to another one.
func (v *View[R]) Drop(to R, pick int) error {
	list, err := v.get(v.List())
	if err != nil {
		return err
	}
	if pick >= len(list.list) {
		return ErrNothing
	}
	r := list.list[pick]
	old, err := v.get(r)
	if err != nil {
		return err
	}
	a, err := v.get(to)
	if err != nil {
		return err
	}
	a.balance += old.balance
	list.list = append(list.list[:pick], list.list[pick+1:]...)
	if err := errors.Join(v.put(to, a), v.put(v.List(), list)); err != nil {
		return err
	}
	v.writes[r] = true
	return v.tx.Free(r)
}

// End reads what is there, and returns what is wrong with the history: an order of the transactions
// that explains it there is none, or a closure saw what never was.
func (k *Bank[R]) End(w Client[R]) error {
	k.final = map[R]uint64{}
	err := k.Run(w, "end", func(v *View[R]) error {
		clear(k.final)
		if err := v.Sum(); err != nil {
			return err
		}
		for r, by := range v.reads {
			k.final[r] = by
		}
		return nil
	})
	return errors.Join(k.wrong, err, k.check())
}
