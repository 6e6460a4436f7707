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

const (
	root   = "farkv/" // of everything in Consul's KV that is ours
	format = 1        // of Record
)

// Record is what has to be known of a pool to open it. It is written once.
type Record struct {
	ID         string            `json:"id"`     // see NewID
	Fabric     string            `json:"fabric"` // "tcp" or "rdma"
	Nodes      []string          `json:"nodes"`  // their addresses, by node
	Store      string            `json:"store"`  // by which it was formatted
	Parameters map[string]string `json:"parameters,omitempty"`

	version uint64 // of the KV entry that it was read from
}

// NewID returns an ID that no other pool has.
func NewID() string { return strings.ToLower(rand.Text()) }

// Pool is a pool's place in Consul's KV, whether it is there or not.
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

// Board returns the board of the pool with that ID: of a Record that was found, or of one that is
// to be published.
func (p *Pool) Board(id string) *Store { return &Store{p.agent, p.folder() + "board/" + id + "/"} }

// Record returns the pool's record. Errors wrap ErrNoPool, ErrFormat or board.ErrUnreachable.
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

// written is a Record in Consul's KV.
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

// Publish makes the pool known once it was made and formatted; before, no program finds it. Of
// several that publish under one name one wins, and the others get an error wrapping ErrExists, and
// Discard what they made. After an error wrapping board.ErrUnreachable it may be known
// nevertheless, or become so: Remove takes it away.
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
	// The record names the winner, even when the answer was lost.
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

// Remove takes away the pool that r was read of, its record and all boards under its name at once.
// Errors wrap ErrNoPool, ErrExists when another pool has taken its place, or board.ErrUnreachable.
func (p *Pool) Remove(r Record) error {
	return p.delete("remove", &api.KVTxnOp{Verb: api.KVCheckIndex, Key: p.folder() + "record", Index: r.version},
		&api.KVTxnOp{Verb: api.KVDeleteTree, Key: p.folder()})
}

// Clear takes away whatever is there under the pool's name, also what is no pool's record. Errors
// wrap board.ErrUnreachable.
func (p *Pool) Clear() error {
	return p.delete("clear", &api.KVTxnOp{Verb: api.KVDeleteTree, Key: p.folder()})
}

// Discard takes away the board of a pool that was made and not published. Errors wrap
// board.ErrUnreachable.
func (p *Pool) Discard(id string) error {
	return p.delete("discard", &api.KVTxnOp{Verb: api.KVDeleteTree, Key: p.Board(id).prefix})
}

// delete does all of ops or nothing.
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

// undone tells why a transaction that begins with first was not executed.
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
