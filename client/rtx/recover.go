package rtx

import (
	"fmt"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// Recover ends what a client has left that was fenced off, and of which nothing is in flight: it finishes a commit, makes the
// log's word say that all of the client's transactions are over, so that whoever meets a lock of theirs releases it, and gives
// the client's chunks back. It may be interrupted at any verb, done by several at a time, and done again. Behind it the identity
// may be used by another client.
//
// No client waits for it: others repair what they meet by themselves.
func (w *Worker) Recover(c rdma.ClientID) error {
	w.extend()
	if c == 0 || int(c) > w.Clients {
		return fmt.Errorf("recover client %d of 1 to %d: %w", c, w.Clients, rdma.ErrAccess)
	}
	if err := w.recoverLog(c); err != nil {
		return fmt.Errorf("recover client %d: %w", c, err)
	}
	return w.releaseChunks(c)
}

// Adopt fences a client off that Fabric.Clients listed, dead or suspected, recovers it, and gives its identity back where
// its holder is gone.
func (w *Worker) Adopt(f rdma.Fabric, c rdma.Client) error {
	if err := f.RevokeLife(c); err != nil {
		return fmt.Errorf("fence client %d off: %w", c.ID, err)
	}
	if err := w.Recover(c.ID); err != nil {
		return err
	}
	return f.Forget(c)
}

// recoverLog ends a client's transactions. Its ceiling is as high as any sequence that it has used.
func (w *Worker) recoverLog(c rdma.ClientID) error {
	numbers, err := kit.OpenNumbers(w.ceiling(c), 0)
	if err != nil {
		return err
	}
	s, err := w.readState(c)
	if err != nil {
		return err
	}
	if err := w.finishLog(c, s); err != nil {
		return err
	}
	for range mostTakeovers {
		if s.sequence() >= numbers.Used() && s.phase() == phaseDone {
			return nil
		}
		end := makeState(phaseDone, max(numbers.Used(), s.sequence()))
		before, ok, err := w.swap(stepRecover, w.log(c).Add(stateAt), uint64(s), uint64(end))
		if ok || err != nil {
			return err
		}
		s = state(before)
	}
	return fmt.Errorf("its log at %v changes all the time: %w", w.log(c), rdma.ErrTimeout)
}

// releaseChunks gives the chunks of a client back, which is fenced off, or the worker itself.
func (w *Worker) releaseChunks(c rdma.ClientID) error {
	for n := range w.Nodes {
		for _, a := range []*arena{&w.metas, &w.data} {
			entries, err := w.readTable(a, n)
			if err != nil {
				return err
			}
			for i, e := range entries {
				if e.Owner() != c {
					continue
				}
				if err := w.freeChunk(a, n, i, e); err != nil {
					return err
				}
			}
		}
	}
	if c == w.id {
		w.memory.open(w)
	}
	return nil
}
