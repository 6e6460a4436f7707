package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

// Recovery is what was done to make a pool whole.
type Recovery struct {
	Pool    string   `json:"pool"`
	Revoked *Client  `json:"revoked,omitempty"` // a client that was fenced off alive
	Master  *Master  `json:"master,omitempty"`  // set if another process is master and recovers
	Done    []Step   `json:"done"`
	Waiting []string `json:"waiting"`          // what is still to be done
	Margin  *Margin  `json:"margin,omitempty"` // how many more nodes may die then; not known where it is left out
}

// Step is one thing that was done.
type Step struct {
	What    string  `json:"what"` // as cluster.What says it
	Text    string  `json:"text"`
	At      float64 `json:"at_seconds"` // since the beginning
	Seconds float64 `json:"seconds,omitempty"`
	Report  string  `json:"report,omitempty"` // how long the parts of it took, in lines
}

// Recover does what a pool's master would: it replaces nodes that are down and recovers clients
// that died. If a client is named, it is fenced off first, whatever it is doing; a live client only
// with force. If another process is master, that master is notified and has the time of a lease to
// do the work. If ctx ends Recover early, the error wraps that of ctx.
//
// If the store needs a majority of the nodes and has lost it, nothing is done, and the error says
// so.
func Recover(ctx context.Context, addr string, client int, force bool) (*Recovery, error) {
	p, err := stores.Open(addr)
	if err != nil {
		return endedAt(addr, err), Explain(err, addr)
	}
	defer p.Close()
	if p.Kind.Recoverer == nil {
		return nil, workloads.Usagef("recover %[1]s: this version recovers no %[2]s pools (hint: 'farkv status "+
			"%[3]s' shows which of its nodes live; 'farkv down --force %[3]s' removes it)", p.Address, p.Kind.Name,
			ShortName(p.Address))
	}
	r := &Recovery{Pool: p.Address, Done: []Step{}, Waiting: []string{}}
	if client != 0 {
		if r.Revoked, err = revoke(p, client, force); err != nil {
			return nil, Explain(err, addr)
		}
	}
	if before := NodeStates(p).Margin; before.Lost() && before.Copies.Majority {
		r.Margin, err = before, errLost // a recoverer reads what has no majority
	} else {
		err = r.recover(ctx, p)
	}
	if err != nil {
		return r, ExplainAt(fmt.Errorf("recover %s: %w", p.Address, err), addr)
	}
	return r, nil
}

// revoke fences a client off. It returns nil when it was dead already.
func revoke(p *stores.Pool, id int, force bool) (*Client, error) {
	c, err := FindClient(p, id)
	switch {
	case err != nil:
		return nil, fmt.Errorf("recover client %d: %w", id, err)
	case c.Alive && !force:
		return nil, fmt.Errorf("recover client %d: %q of process %d is alive (hint: with --force it is fenced "+
			"off, and everything that it does from there on fails)", id, c.Name, c.PID)
	}
	if err := p.Fabric.RevokeLife(c); err != nil {
		return nil, err
	}
	if !c.Alive {
		return nil, nil
	}
	return ClientOf(c), nil
}

// endedAt returns the Recovery of a pool that cannot be opened because too few of its nodes live.
// nil: why has another reason.
func endedAt(addr string, why error) *Recovery {
	if !errors.Is(why, rdma.ErrMinority) {
		return nil
	}
	if s := Unreachable(addr, why); s != nil && s.Margin.Ended() {
		return &Recovery{Pool: addr, Done: []Step{}, Waiting: []string{}, Margin: s.Margin}
	}
	return nil
}

func (r *Recovery) recover(ctx context.Context, p *stores.Pool) error {
	ep, err := p.Fabric.Open("recover")
	if err != nil {
		return err
	}
	began := ep.Now()
	lease := stores.Tenure(p.Fabric)
	did, err := cluster.Once(ep, p.Fabric, p.Kind.Recoverer(p.Fabric), cluster.Options{
		Lease: lease, Tick: lease / 12, Stop: func() bool { return ctx.Err() != nil },
		Tell: stores.Teller(ep, p.Fabric),
	})
	if errors.Is(err, cluster.ErrStopped) {
		err = ctx.Err()
	}
	var failed error
	for _, e := range did {
		if e.What == cluster.Failed {
			failed = e.Err
		}
		if e.What != cluster.Elected {
			step := Step{What: e.What.String(), Text: e.String(), At: (e.At - began).Seconds(),
				Seconds: e.Took.Seconds()}
			if e.Report != step.Text {
				step.Report = e.Report
			}
			r.Done = append(r.Done, step)
		}
	}
	err = errors.Join(err, ep.Close())
	var other *cluster.OtherMaster
	if errors.As(err, &other) {
		if r.Master = MasterOf(p.Fabric); r.Master == nil { // it has just resigned, or died
			r.Master = &Master{Client: int(other.Role.Owner)}
		}
		err = nil
	}
	r.Waiting = append(r.Waiting, Unrecovered(p.Fabric, p.Kind.Majority)...)
	r.Margin = NodeStates(p).Margin
	switch {
	case err != nil:
		return err
	case len(r.Waiting) == 0 && r.Margin.Lost():
		return errLost
	case len(r.Waiting) == 0:
		return nil
	case r.Master != nil:
		return fmt.Errorf("%v is master and has not done it yet: %w", r.Master, rdma.ErrTimeout)
	}
	return failed
}

// Unrecovered lists what a master would do. It leaves out clients that were fenced off while their
// process is attached: they keep their identity, recovered or not. With majority it leaves out dead
// nodes: such a pool does not replace them.
func Unrecovered(f rdma.Fabric, majority bool) (todo []string) {
	nodes, view := NodesOf(f)
	switch {
	case view.Busy && majority:
		todo = append(todo, fmt.Sprintf("the memory without an owner: epoch %d has begun, in which it is swept",
			view.Epoch))
	case view.Busy:
		todo = append(todo, fmt.Sprintf("the replicas: epoch %d has begun, and clients only read until they are mended",
			view.Epoch))
	}
	for i, n := range nodes {
		if !n.Up && !n.Gone && !majority {
			todo = append(todo, fmt.Sprintf("node %d, which is down", i))
		}
	}
	clients, err := rdma.ListClients(f)
	if err != nil {
		todo = append(todo, fmt.Sprintf("clients, maybe: %v", err))
	}
	for _, c := range clients {
		if !c.Alive && !c.Held {
			todo = append(todo, fmt.Sprintf("client %d %q of process %d, which is dead", c.ID, c.Name, c.PID))
		}
	}
	return todo
}

// Print implements Result.
func (r *Recovery) Print(w io.Writer) {
	if r.Revoked != nil {
		fmt.Fprintf(w, "client %d %q of process %d is fenced off\n", r.Revoked.ID, r.Revoked.Name, r.Revoked.PID)
	}
	if r.Master != nil {
		fmt.Fprintf(w, "%v is the pool's master, and recovers it\n", r.Master)
	}
	for _, s := range r.Done {
		at := time.Duration(s.At * float64(time.Second)).Round(10 * time.Microsecond)
		fmt.Fprintf(w, "%9v  %s\n", at, s.Text)
		for line := range strings.Lines(s.Report) {
			fmt.Fprintf(w, "           %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
	for _, s := range r.Waiting {
		fmt.Fprintf(w, "waits: %s\n", s)
	}
	if len(r.Waiting) == 0 && !r.Margin.Ended() && !r.Margin.Lost() {
		fmt.Fprintln(w, "nothing is left to recover")
	}
	if r.Margin != nil {
		fmt.Fprintln(w, r.Margin)
	}
}
