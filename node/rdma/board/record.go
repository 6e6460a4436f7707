package board

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// ErrDamaged is wrapped when a record holds what no program of this version can have written.
var ErrDamaged = errors.New("the record is damaged, or of another version of farkv")

const (
	viewKey    = "view"
	masterKey  = "master"
	configKey  = "config"
	clientsKey = "client/"
)

// clientKey pads the identity, so that keys have the order of identities.
func clientKey(c rdma.ClientID) string { return fmt.Sprintf("%s%05d", clientsKey, c) }

// clientOf is the inverse of clientKey.
func clientOf(key string) (rdma.ClientID, error) {
	text, ok := strings.CutPrefix(key, clientsKey)
	id, err := strconv.ParseUint(text, 10, 16)
	if !ok || err != nil || clientKey(rdma.ClientID(id)) != key {
		return 0, fmt.Errorf("record %q names no client: %w", key, ErrDamaged)
	}
	return rdma.ClientID(id), nil
}

// viewRecord is the durable view. That a node is down comes first, that it is gone from the view
// follows.
type viewRecord struct {
	Epoch   uint64   `json:"epoch"`
	Busy    bool     `json:"busy"`
	Members []uint64 `json:"members"` // rdma.Member words, by node
	Down    []bool   `json:"down"`    // expelled, by node
}

func (r *viewRecord) state() rdma.State { return rdma.State{Epoch: r.Epoch, Busy: r.Busy} }

// check returns what is wrong with the record in a pool of that shape.
func (r *viewRecord) check(o *Options) error {
	if len(r.Members) != o.Nodes || len(r.Down) != o.Nodes {
		return fmt.Errorf("%d members and %d down flags in a pool of %d nodes", len(r.Members), len(r.Down), o.Nodes)
	}
	for n, word := range r.Members {
		if rdma.MemberOf(word).Word() != word {
			return fmt.Errorf("member %d is %#x", n, word)
		}
	}
	return nil
}

// masterRecord is the tenure of a pool's master, or, with Owner 0, what is left of the last one.
type masterRecord struct {
	Owner rdma.ClientID `json:"owner"`
	Life  uint64        `json:"life"`  // of the owner; 0: the identity was free
	Epoch uint64        `json:"epoch"` // one more with each tenure
	Until time.Duration `json:"until"` // on the owner's own clock: no other process can read it
	Lease time.Duration `json:"lease"`
	// Turn makes every value another one: a store may skip a write that changes nothing, and its
	// version with it.
	Turn uint64 `json:"turn"`
	// Beyond is rdma.Role.Beyond. It stays when the tenure ends: the next master does not know how
	// far its master came.
	Beyond uint64 `json:"beyond,omitempty"`
}

func (r *masterRecord) role() rdma.Role {
	return rdma.Role{Owner: r.Owner, Epoch: r.Epoch, Until: r.Until, Beyond: r.Beyond}
}

func (r *masterRecord) check(o *Options) error {
	switch {
	case r.Epoch == 0 || r.Turn < r.Epoch:
		return fmt.Errorf("epoch %d at turn %d", r.Epoch, r.Turn)
	case int(r.Owner) > o.Clients:
		return fmt.Errorf("owner %d in a pool of %d clients", r.Owner, o.Clients)
	case r.Lease < MinLease || r.Lease > MaxLease:
		return fmt.Errorf("a lease of %v", r.Lease)
	}
	return nil
}

// configRecord is the store's configuration. It is one record, so that no crash leaves a part of
// one.
type configRecord struct {
	// Tenure is the epoch of the last one that began, or was about to: none before it changes the
	// record any more.
	Tenure  uint64 `json:"tenure"`
	Version uint64 `json:"version"`
	Data    []byte `json:"data"`
}

func (r *configRecord) check(*Options) error {
	if r.Version == 0 && len(r.Data) > 0 {
		return fmt.Errorf("%d bytes of version 0", len(r.Data))
	}
	return rdma.CheckConfig(r.Data)
}

// clientRecord is an identity. It stays when the identity is free, for the number of its last life.
type clientRecord struct {
	Life    uint64 `json:"life"`
	Name    string `json:"name"`
	PID     int    `json:"pid"`
	Process string `json:"process"`
	Machine string `json:"machine"`
	InUse   bool   `json:"in_use"`
	Fenced  bool   `json:"fenced"` // it stays in use until it is forgotten
	Closed  bool   `json:"closed"` // its holder let go of it, after it was fenced off
}

func (r *clientRecord) check(*Options) error {
	switch {
	case r.Life == 0:
		return errors.New("life 0")
	case r.Fenced && !r.InUse || r.Closed && !r.Fenced:
		return fmt.Errorf("in use: %v, fenced: %v, closed: %v", r.InUse, r.Fenced, r.Closed)
	}
	return nil
}

// record is what the board keeps. The zero value is what a key that was never written means.
type record[T any] interface {
	*T
	check(o *Options) error
}

// decode reads a record. A field that it does not know is an error: a writer of the record would
// drop it.
func decode[T any, R record[T]](key string, value []byte, o *Options) (T, error) {
	var r T
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	if err == nil {
		if _, end := d.Token(); end != io.EOF {
			err = errors.New("something follows it")
		}
	}
	if err == nil {
		err = R(&r).check(o)
	}
	if err != nil {
		return *new(T), fmt.Errorf("read record %q of the pool's board: %v: %w", key, err, ErrDamaged)
	}
	return r, nil
}

// load reads a record; its zero value at version 0.
func load[T any, R record[T]](b *Board, key string) (T, uint64, error) {
	value, version, err := b.store.Load(key)
	if err != nil {
		return *new(T), 0, fmt.Errorf("load record %q of the pool's board: %w", key, err)
	}
	if version == 0 {
		return *new(T), 0, nil
	}
	r, err := decode[T, R](key, value, &b.o)
	return r, version, err
}

// swap replaces a record, as Store.Swap does.
func (b *Board) swap(key string, version uint64, r any) (bool, error) {
	value, err := json.Marshal(r)
	if err != nil {
		return false, fmt.Errorf("encode record %q: %w", key, err)
	}
	ok, err := b.store.Swap(key, version, value)
	if err != nil {
		return false, fmt.Errorf("replace record %q of the pool's board: %w", key, err)
	}
	return ok, nil
}

// patience bounds how often one call begins anew: each time another process has changed the record.
const patience = 100

// attempts is how often a change is tried whose outcome a store could not tell, and that does no
// harm twice.
const attempts = 3

// edit changes a record as change says, until that is done or change finds nothing to do (false).
// What it does must be the same when it is done twice, since an outcome that the store could not
// tell is found by trying again.
func edit[T any, R record[T]](b *Board, key string, change func(r R) (bool, error)) error {
	var failed error
	for failures, try := 0, 0; failures < attempts && try < patience; try++ {
		r, version, err := load[T, R](b, key)
		if errors.Is(err, ErrDamaged) {
			return err
		}
		if err == nil {
			todo, refused := change(&r)
			if refused != nil || !todo {
				return refused
			}
			var ok bool
			if ok, err = b.swap(key, version, &r); ok {
				return nil
			}
		}
		if err != nil {
			failed = err
			failures++
		}
	}
	if failed == nil {
		failed = fmt.Errorf("others changed record %q %d times meanwhile: %w", key, patience, ErrUnreachable)
	}
	return failed
}
