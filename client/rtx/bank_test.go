package rtx

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// bank is a pool of accounts: roots, and others that come and go, which the last root lists. Transfers keep the sum.
// Each object holds which transaction wrote it, its balance, and the list.
type bank struct {
	l        *Layout
	accounts int
	history
	mu    sync.Mutex // guards history, ids, wrong and known
	ids   uint64
	wrong error                    // what a closure saw that never was
	known map[*Worker]map[Ref]Meta // what workers guess; nil: they do not
	clock func() time.Duration     // the same for all clients, whatever their own show; nil: theirs agree
	pad   int                      // bytes more of each object
}

const (
	startBalance = 100
	mostListed   = 4 // accounts that the last root lists
)

func (k *bank) root() Ref { return k.l.Root(k.accounts) }

type account struct {
	by      uint64
	balance uint64
	list    []Ref
}

func (k *bank) encode(a account) []byte {
	p := le.AppendUint64(nil, a.by)
	p = le.AppendUint64(p, a.balance)
	p = le.AppendUint64(p, uint64(len(a.list)))
	for _, r := range a.list {
		p = le.AppendUint64(p, uint64(r))
	}
	return append(p, make([]byte, k.pad)...)
}

func decode(p []byte) (a account) {
	a.by, a.balance = le.Uint64(p), le.Uint64(p[8:])
	for i := range le.Uint64(p[16:]) {
		a.list = append(a.list, Ref(le.Uint64(p[24+8*i:])))
	}
	return a
}

// found makes the accounts.
func (k *bank) found(w *Worker) error {
	return w.Run(func(tx *Tx) error {
		for i := range k.accounts {
			if err := tx.Write(k.l.Root(i), k.encode(account{balance: startBalance})); err != nil {
				return err
			}
		}
		return tx.Write(k.root(), k.encode(account{}))
	})
}

// view is a closure's: it notes what the closure reads and writes.
type view struct {
	*bank
	*event
	tx *Tx
}

func (v *view) get(r Ref) (account, error) {
	p, err := v.tx.Read(r)
	if err != nil {
		if errors.Is(err, ErrNoObject) {
			v.saw("an account that is listed is not there: %w", err)
		}
		return account{}, err
	}
	a := decode(p)
	if _, ok := v.reads[r]; !ok && !v.made[r] {
		v.reads[r] = a.by
	}
	return a, nil
}

// saw notes what never was.
func (v *view) saw(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.wrong == nil {
		v.wrong = fmt.Errorf("%s: "+format, append([]any{v.client}, args...)...)
	}
}

func (v *view) put(r Ref, a account) error {
	a.by = v.id
	v.writes[r] = false
	return v.tx.Write(r, v.encode(a))
}

// run runs one transaction and notes it.
func (k *bank) run(w *Worker, name string, f func(v *view) error) error {
	k.mu.Lock()
	k.ids++
	e := &event{id: k.ids, client: name, begin: k.now(w)}
	k.events = append(k.events, e)
	var known map[Ref]Meta
	if k.known != nil {
		if known = k.known[w]; known == nil {
			known = map[Ref]Meta{}
			k.known[w] = known
		}
	}
	k.mu.Unlock()
	err := w.Run(func(tx *Tx) error {
		e.reads, e.writes, e.made = map[Ref]uint64{}, map[Ref]bool{}, map[Ref]bool{}
		for _, r := range slices.Sorted(maps.Keys(known)) {
			tx.Guess(r, known[r])
		}
		return f(&view{k, e, tx})
	})
	for r := range e.reads {
		if m, ok := w.Seen(r); ok && known != nil {
			known[r] = m
		}
	}
	switch {
	case err == nil:
		e.done, e.end = true, k.now(w)
	case !errors.Is(err, client.ErrUncertain) && !errors.Is(err, rdma.ErrClosed):
		e.refused, e.end = true, k.now(w)
	}
	return err
}

func (k *bank) now(w *Worker) time.Duration {
	if k.clock != nil {
		return k.clock()
	}
	return w.ep.Now()
}

// errNothing ends a transaction that has nothing to do.
var errNothing = errors.New("nothing to do")

// act does something at random. With all: what needs more memory, too.
func (k *bank) act(w *Worker, name string, rng *rand.Rand) error {
	a, b := k.l.Root(rng.IntN(k.accounts)), k.l.Root(rng.IntN(k.accounts))
	amount, pick, lock := rng.Uint64N(10), rng.IntN(mostListed), rng.IntN(3) == 0
	kind := rng.IntN(10)
	err := k.run(w, name, func(v *view) error {
		if lock {
			if err := v.tx.Lock(a); err != nil {
				return err
			}
		}
		switch kind {
		case 0, 1:
			return v.transfer(a, b, amount)
		case 2, 3:
			return v.touch(a)
		case 4:
			return v.sum()
		case 5, 6:
			return v.make(a, amount)
		case 7, 8:
			return v.drop(a, pick)
		}
		return v.touchListed(pick)
	})
	if errors.Is(err, errNothing) {
		return nil
	}
	return err
}

func (v *view) transfer(from, to Ref, amount uint64) error {
	a, err := v.get(from)
	if err != nil {
		return err
	}
	if a.balance < amount {
		return errNothing
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

// touch changes one object.
func (v *view) touch(r Ref) error {
	a, err := v.get(r)
	if err != nil {
		return err
	}
	return v.put(r, a)
}

func (v *view) touchListed(pick int) error {
	list, err := v.get(v.root())
	if err != nil {
		return err
	}
	if pick >= len(list.list) {
		return errNothing
	}
	return v.touch(list.list[pick])
}

// sum reads all accounts. What they have together is known, whether the transaction commits or not.
func (v *view) sum() error {
	list, err := v.get(v.root())
	if err != nil {
		return err
	}
	sum := uint64(0)
	for i := range v.accounts {
		a, err := v.get(v.l.Root(i))
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
	if want := uint64(v.accounts) * startBalance; sum != want {
		v.saw("all accounts have %d, not %d", sum, want)
	}
	return nil
}

// make makes an account, and moves something there.
func (v *view) make(from Ref, amount uint64) error {
	list, err := v.get(v.root())
	if err != nil {
		return err
	}
	a, err := v.get(from)
	if err != nil {
		return err
	}
	if a.balance < amount || len(list.list) == mostListed {
		return errNothing
	}
	a.balance -= amount
	r, err := v.tx.New(v.encode(account{by: v.id, balance: amount}))
	if err != nil {
		return err
	}
	v.made[r], v.writes[r] = true, false
	list.list = append(list.list, r)
	return errors.Join(v.put(from, a), v.put(v.root(), list))
}

// drop frees an account, and moves what is there to another one.
func (v *view) drop(to Ref, pick int) error {
	list, err := v.get(v.root())
	if err != nil {
		return err
	}
	if pick >= len(list.list) {
		return errNothing
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
	if err := errors.Join(v.put(to, a), v.put(v.root(), list)); err != nil {
		return err
	}
	v.writes[r] = true
	return v.tx.Free(r)
}

// end reads what is there, and checks the history.
func (k *bank) end(w *Worker) error {
	k.final = map[Ref]uint64{}
	err := k.run(w, "end", func(v *view) error {
		clear(k.final)
		if err := v.sum(); err != nil {
			return err
		}
		for r, by := range v.reads {
			k.final[r] = by
		}
		return nil
	})
	return errors.Join(k.wrong, err, k.check())
}
