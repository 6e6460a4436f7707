package rtx

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Recover ends what a client has left that was fenced off, and of which nothing
// is in flight. It finishes a commit. It makes the log's word say that all of the
// client's transactions are over, so that other clients release their locks on
// sight. It gives the client's chunks back. A crash at any verb leaves what
// another Recover completes. Afterwards the identity may be used by another
// client, and not before: clients that may recover at the same time call Adopt.
//
// No client waits for a recovery: each repairs what it meets by itself.
func (w *Worker) Recover(c rdma.ClientID) error {
	return w.recover(c, isMeant)
}

// isMeant is for identities that have no other holder meanwhile.
func isMeant() (bool, error) { return true, nil }

// Adopt fences a client off that Fabric.Clients has listed, dead or suspected,
// recovers it, and gives its identity back. Any number of clients may do so at a
// time. A later holder of the identity is not harmed: what recover changes, it
// has read before it asked the pool whether the client is still listed.
func (w *Worker) Adopt(f rdma.Fabric, c rdma.Client) error {
	if err := f.RevokeLife(c); err != nil {
		return fmt.Errorf("fence client %d off: %w", c.ID, err)
	}
	same := func(o rdma.Client) bool { return o.ID == c.ID && o.Life == c.Life }
	err := w.recover(c.ID, func() (bool, error) {
		list, err := rdma.ListClients(f)
		return slices.ContainsFunc(list, same), err
	})
	if err != nil {
		return err
	}
	return f.Forget(c)
}

// clientState is what a client has left, as it was read.
type clientState struct {
	state state
	// used is as high as any sequence of the client.
	used   uint64
	chunks []holding
}

// holding is the list of chunks of an arena, on one node, that a client has.
type holding struct {
	a    *chunks.Arena
	list []chunks.Chunk
}

// recover is Recover, for one holder of the identity: see endClient.
func (w *Worker) recover(c rdma.ClientID, still func() (bool, error)) error {
	w.trips.Begin()
	if c == 0 || int(c) > w.Clients {
		return fmt.Errorf("recover client %d of 1 to %d: %w", c, w.Clients, rdma.ErrAccess)
	}
	if err := w.endClient(c, still); err != nil {
		return fmt.Errorf("recover client %d: %w", c, err)
	}
	return nil
}

// endClient ends what a client has left. Behind all READs, still reports whether the
// client is the one that was meant. If it is, what was READ is that client's. None of
// these words comes back, so a CAS that comes late, when the identity is another
// client's, does nothing.
//
// The log's word is changed before the chunks are given back. So no repair
// installs a buffer of the client any more when another client takes the chunks.
func (w *Worker) endClient(c rdma.ClientID, still func() (bool, error)) error {
	if w.view.Gone(w.log(c).Node()) {
		return w.endLost(c, still)
	}
	for range mostTakeovers {
		e, err := w.survey(c)
		if err != nil {
			return err
		}
		// Otherwise another client has recovered it.
		if meant, err := still(); err != nil || !meant {
			return err
		}
		ended, err := w.endAll(c, e)
		if err != nil {
			return err
		}
		if ended {
			return w.freeChunks(e.chunks)
		}
	}
	return fmt.Errorf("the log of client %d at %v changes all the time: %w", c, w.log(c), rdma.ErrTimeout)
}

// endLost is endClient for a client whose log is gone with its node. Its locks on other nodes stay:
// what it decided is lost, so no client knows whether it committed.
func (w *Worker) endLost(c rdma.ClientID, still func() (bool, error)) error {
	list, err := w.chunksOf(c)
	if err != nil {
		return err
	}
	if meant, err := still(); err != nil || !meant {
		return err
	}
	return w.freeChunks(list)
}

// survey finishes a client's commit, and reads what the client has left. Its
// ceiling is as high as any sequence that it has used.
func (w *Worker) survey(c rdma.ClientID) (e clientState, err error) {
	if e.state, err = w.readState(c); err != nil {
		return e, err
	}
	if e.state.phase() == phaseDoing {
		if err := w.finishLog(c, e.state); err != nil {
			return e, err
		}
		if e.state, err = w.readState(c); err != nil {
			return e, err
		}
	}
	numbers, err := kit.OpenNumbers(w.ceiling(c), 0)
	if err != nil {
		return e, err
	}
	e.used = numbers.Used()
	e.chunks, err = w.chunksOf(c)
	return e, err
}

// endAll makes a log's word say that all of its client's transactions are over.
// It returns false if the word is not as it was read.
func (w *Worker) endAll(c rdma.ClientID, e clientState) (bool, error) {
	if e.state.sequence() >= e.used && e.state.phase() == phaseDone {
		return true, nil
	}
	end := makeState(phaseDone, max(e.used, e.state.sequence()))
	_, ok, err := w.trips.Swap(stepRecover, w.log(c).Add(stateAt), uint64(e.state), uint64(end))
	return ok, err
}

// chunksOf reads which chunks a client has, on all nodes that are not gone.
func (w *Worker) chunksOf(c rdma.ClientID) (all []holding, err error) {
	for n := range w.Nodes {
		if w.view.Gone(n) {
			continue
		}
		for _, a := range []*chunks.Arena{&w.metas, &w.data} {
			list, err := w.memory.table.Of(a, n, c)
			if err != nil {
				return nil, err
			}
			all = append(all, holding{a, list})
		}
	}
	return all, nil
}

// freeChunks gives chunks back, by a CAS of each word as it was read.
func (w *Worker) freeChunks(all []holding) error {
	for _, o := range all {
		if err := w.memory.table.Free(o.a, o.list); err != nil {
			return err
		}
	}
	return nil
}
