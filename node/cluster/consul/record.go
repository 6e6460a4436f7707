package consul

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/consul/api"
)

// root is the prefix of all our keys in Consul's KV; format is that of Record.
const (
	root   = "farkv/"
	format = 1
)

// Record is what a process must know to open a pool. It is written once and never changed.
type Record struct {
	ID     string   `json:"id"`     // see NewID
	Fabric string   `json:"fabric"` // "tcp" or "rdma"
	Nodes  []string `json:"nodes"`  // addresses, by node
	// The store and the parameters by which the pool was formatted.
	Store      string            `json:"store"`
	Parameters map[string]string `json:"parameters,omitempty"`

	// Version of the KV entry that it was read from: Remove removes no other.
	version uint64
}

// NewID returns an ID that no other pool has.
func NewID() string { return strings.ToLower(rand.Text()) }

// Pool is a pool's place in Consul's KV, whether or not there is a pool.
type Pool struct {
	agent *Agent
	name  string
}

// Pool returns the place of a pool. Errors wrap ErrAddress.
func (a *Agent) Pool(name string) (*Pool, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return &Pool{a, name}, nil
}

func (p *Pool) String() string { return "consul:" + p.agent.address + "/" + p.name }

func (p *Pool) folder() string { return root + p.name + "/" }

// Registry returns the registry of the pool with an ID: that of a Record that was read, or of one
// that will be published.
func (p *Pool) Registry(id string) *Store { return &Store{p.agent, p.folder() + "board/" + id + "/"} }

// Record returns the pool's record. Errors wrap ErrNoPool, ErrFormat or membership.ErrUnreachable.
func (p *Pool) Record() (Record, error) {
	s := Store{p.agent, p.folder()}
	text, version, err := s.Load("record")
	if err != nil {
		return Record{}, err
	}
	if version == 0 {
		return Record{}, fmt.Errorf("%s: %w", p, ErrNoPool)
	}
	r, err := decode(text)
	if err != nil {
		return Record{}, fmt.Errorf("%s: %w", p, err)
	}
	r.version = version
	return r, nil
}

// written is the form of a Record in Consul's KV.
type written struct {
	Format int `json:"format"`
	Record
}

func decode(text []byte) (Record, error) {
	var w written
	if err := json.Unmarshal(text, &w); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	switch {
	case w.Format != format:
		return Record{}, fmt.Errorf("%w: format %d, and this version knows %d", ErrFormat, w.Format, format)
	case w.ID == "" || strings.Contains(w.ID, "/") || w.Fabric == "" || len(w.Nodes) == 0:
		return Record{}, fmt.Errorf("%w: it lacks an id, a fabric or nodes", ErrFormat)
	}
	return w.Record, nil
}

// Publish makes a pool known that was made and formatted. No program finds it before. If several
// publish under one name, one wins. The others get an error that wraps ErrExists, and must Discard
// what they made. After an error that wraps membership.ErrUnreachable the pool may be known, or
// become known later; Remove removes it.
func (p *Pool) Publish(r Record) error {
	text, err := json.Marshal(written{format, r})
	if err != nil {
		return fmt.Errorf("%s: publish: %w", p, err)
	}
	if _, err := decode(text); err != nil {
		return fmt.Errorf("%s: publish: %w", p, err)
	}
	s := Store{p.agent, p.folder()}
	won, err := s.Swap("record", 0, text)
	if won {
		return nil
	}
	// The answer may have been lost: the record says which one won.
	switch there, again := p.Record(); {
	case again == nil && there.ID == r.ID:
		return nil
	case again == nil || errors.Is(again, ErrFormat):
		return fmt.Errorf("%s: %w", p, ErrExists)
	case err == nil:
		return again
	}
	return err
}

// Remove removes the pool that r was read from: its record and all registries under its name, in
// one transaction. Errors wrap ErrNoPool, ErrExists if another pool has taken its name, or
// membership.ErrUnreachable.
func (p *Pool) Remove(r Record) error {
	return p.delete("remove", &api.KVTxnOp{Verb: api.KVCheckIndex, Key: p.folder() + "record", Index: r.version},
		&api.KVTxnOp{Verb: api.KVDeleteTree, Key: p.folder()})
}

// Clear removes everything under the pool's name, also what is no pool's record. Errors wrap
// membership.ErrUnreachable.
func (p *Pool) Clear() error {
	return p.delete("clear", &api.KVTxnOp{Verb: api.KVDeleteTree, Key: p.folder()})
}

// Discard removes the registry of a pool that was made and not published. Errors wrap
// membership.ErrUnreachable.
func (p *Pool) Discard(id string) error {
	return p.delete("discard", &api.KVTxnOp{Verb: api.KVDeleteTree, Key: p.Registry(id).prefix})
}

// delete executes all of ops in one transaction, or none.
func (p *Pool) delete(what string, ops ...*api.KVTxnOp) error {
	var txn api.TxnOps
	for _, op := range ops {
		txn = append(txn, &api.TxnOp{KV: op})
	}
	var done bool
	var answer *api.TxnResponse
	err := p.agent.call(false, func(ctx context.Context) (err error) {
		done, answer, _, err = p.agent.client.Txn().Txn(txn, (&api.QueryOptions{}).WithContext(ctx))
		return err
	})
	switch {
	case err != nil:
		return p.agent.failed(err, "%s %s", what, p.folder())
	case done:
		return nil
	}
	return p.undone(what, ops[0], answer)
}

// undone returns why a transaction was not executed; first is its first operation.
func (p *Pool) undone(what string, first *api.KVTxnOp, answer *api.TxnResponse) error {
	if first.Verb == api.KVCheckIndex {
		switch now, err := p.Record(); {
		case err != nil && !errors.Is(err, ErrFormat):
			return err
		case err != nil || now.version != first.Index:
			return fmt.Errorf("%s %s: another pool has its name now: %w", what, p, ErrExists)
		}
	}
	err := errors.New("the transaction was not executed")
	if answer != nil && len(answer.Errors) > 0 {
		err = errors.New(answer.Errors[0].What)
	}
	return p.agent.failed(err, "%s %s", what, p.folder())
}
