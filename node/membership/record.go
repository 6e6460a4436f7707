package membership

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

// ErrDamaged is wrapped when a record holds what no program of this version can have written. No
// operation replaces such a record.
var ErrDamaged = errors.New("the record is damaged, or of another version of farkv")

const (
	// The keys of the records. The store of each pool has its own.
	viewKey    = "view"
	masterKey  = "master"
	configKey  = "config"
	clientsKey = "client/"
)

// clientKey returns the key of an identity's record. It is padded, so that keys have the order of
// identities.
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

// viewRecord is the durable view. A master that expels a node sets Down first, waits until the node
// cannot serve, and sets Gone of its member then. A crash between the two leaves a node that is
// down and not gone; the next master expels it again.
type viewRecord struct {
	// Epoch only grows. Members and Down change only while it is Busy, by the master of that epoch.
	Epoch uint64 `json:"epoch"`
	Busy  bool   `json:"busy"`
	// Members are rdma.Member words, by node. None comes back to an earlier value.
	Members []uint64 `json:"members"`
	// Down has, by node, whether it was expelled. A flag is never reset.
	Down []bool `json:"down"`
}

func (r *viewRecord) state() rdma.State { return rdma.State{Epoch: r.Epoch, Busy: r.Busy} }

// check returns what is wrong with the record in a pool of that shape: lists of another length, or
// words that Member.Word never makes.
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
	// Life is the owner's, so that its successor in the identity is not taken for the master; 0:
	// the identity was free when the tenure began.
	Life uint64 `json:"life"`
	// Epoch is the number of the tenure, one more with each. It is not the view's.
	Epoch uint64 `json:"epoch"`
	// Until is the end of the lease on the owner's own clock. It means nothing to other processes.
	Until time.Duration `json:"until"`
	// Lease is the length of the lease, by which other processes wait: see ExpelWait.
	Lease time.Duration `json:"lease"`
	// Turn grows with each write, so that every value differs from the one before. A store may skip
	// a write that changes nothing, and then the version would not grow.
	Turn uint64 `json:"turn"`
	// FenceEpoch is rdma.Role.FenceEpoch. It stays when the tenure ends: the next master does not
	// know whether this one reached that epoch.
	FenceEpoch uint64 `json:"beyond,omitempty"`
}

func (r *masterRecord) role() rdma.Role {
	return rdma.Role{Owner: r.Owner, Epoch: r.Epoch, Until: r.Until, FenceEpoch: r.FenceEpoch}
}

// check returns what is wrong with the record in a pool of that shape. A written record has had a
// tenure, so neither Epoch nor Lease is 0.
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

// configRecord is the store's configuration. It is one record, so that no crash leaves a part of a
// configuration.
type configRecord struct {
	// Tenure is the number (masterRecord.Epoch) of the last tenure that began or was about to
	// begin. No earlier tenure changes the record any more. It only grows.
	Tenure uint64 `json:"tenure"`
	// Version is the configuration's own, one more with each SwapConfig; 0: none was written yet.
	// It is not the record's version, which also grows when Tenure alone changes.
	Version uint64 `json:"version"`
	// Data is what the store wrote, at most rdma.MaxConfig bytes.
	Data []byte `json:"data"`
}

// check returns what is wrong with the record.
func (r *configRecord) check(*Options) error {
	if r.Version == 0 && len(r.Data) > 0 {
		return fmt.Errorf("%d bytes of version 0", len(r.Data))
	}
	return rdma.CheckConfig(r.Data)
}

// clientRecord is an identity. It is never removed, since it has the number of the last life: a
// later life of the identity has a greater one.
//
// An identity is free, in use, fenced, or closed. Claim makes a free one in use. Release makes one
// in use free, and a fenced one closed. MarkFenced makes one in use fenced. Forget frees one that
// is closed, or of which the process is not attached.
type clientRecord struct {
	// Life is that of the present holder, or of the last one if the identity is free. It is at
	// least 1 in a written record.
	Life uint64 `json:"life"`
	// Name, PID and Machine are shown to operators.
	Name string `json:"name"`
	PID  int    `json:"pid"`
	// Process is Options.Process of the Registry that claimed the identity.
	Process string `json:"process"`
	Machine string `json:"machine"`
	// InUse: the identity is not handed out.
	InUse bool `json:"in_use"`
	// Fenced: this life was fenced off, or is about to be. The identity stays in use until its
	// client was recovered, and Forget frees it.
	Fenced bool `json:"fenced"`
	// Closed: it was fenced off, and its holder has released it since. So no process holds it.
	Closed bool `json:"closed"`
}

// check returns what is wrong with the record.
func (r *clientRecord) check(*Options) error {
	switch {
	case r.Life == 0:
		return errors.New("life 0")
	case r.Fenced && !r.InUse || r.Closed && !r.Fenced:
		return fmt.Errorf("in use: %v, fenced: %v, closed: %v", r.InUse, r.Fenced, r.Closed)
	}
	return nil
}

// record is one of the registry's four kinds of records. Its zero value is what a key that was
// never written means.
type record[T any] interface {
	*T
	check(o *Options) error
}

// decode decodes and checks a record. A field that this version does not know is an error: the next
// writer of the record would drop it. So is anything behind the JSON value.
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
		return *new(T), fmt.Errorf("read record %q of the pool's registry: %v: %w", key, err, ErrDamaged)
	}
	return r, nil
}

// load reads a record and its version. A record that was never written is the zero value at version
// 0.
func load[T any, R record[T]](b *Registry, key string) (T, uint64, error) {
	value, version, err := b.store.Load(key)
	if err != nil {
		return *new(T), 0, fmt.Errorf("load record %q of the pool's registry: %w", key, err)
	}
	if version == 0 {
		return *new(T), 0, nil
	}
	r, err := decode[T, R](key, value, &b.o)
	return r, version, err
}

// swap replaces a record if it has the given version, as Store.Swap does. An error of the store
// leaves open whether the record was, or will be, replaced.
func (b *Registry) swap(key string, version uint64, r any) (bool, error) {
	value, err := json.Marshal(r)
	if err != nil {
		return false, fmt.Errorf("encode record %q: %w", key, err)
	}
	ok, err := b.store.Swap(key, version, value)
	if err != nil {
		return false, fmt.Errorf("replace record %q of the pool's registry: %w", key, err)
	}
	return ok, nil
}

// maxRestarts bounds how often one call begins anew. Each time another process has changed the
// record meanwhile, so the system as a whole makes progress.
const maxRestarts = 100

// attempts bounds how often a change is tried of which the store does not know the outcome. Only
// changes that do no harm when they are made twice are tried again.
const attempts = 3

// edit loads a record, applies change and swaps it, until the swap succeeds or change reports
// false: there is nothing to do. An error of change ends it, and so does a damaged record.
//
// A swap of unknown outcome is followed by another load and another call of change. So change must
// be idempotent: on a record that it has changed before it reports false, or changes it to the
// same.
func edit[T any, R record[T]](b *Registry, key string, change func(r R) (bool, error)) error {
	var failed error
	for failures, try := 0, 0; failures < attempts && try < maxRestarts; try++ {
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
		failed = fmt.Errorf("others changed record %q %d times meanwhile: %w", key, maxRestarts, ErrUnreachable)
	}
	return failed
}
