package cluster

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// What is the kind of an Event.
type What uint8

// The kinds of events.
const (
	// Elected: the process has become the pool's master.
	Elected What = iota + 1
	// Lost: it is not master any more. Another client is, or was, or has asked it to resign.
	Lost
	// Expelled: a node did not answer. No client uses it any more.
	Expelled
	// Mended: all replicas are equal again.
	Mended
	// Restored: a spare replaces a node that is gone.
	Restored
	// Recovered: a dead client's operations are completed or undone, and what it owned is passed
	// on.
	Recovered
	// Attached: as Recovered, but the client's process still holds its identity.
	Attached
	// Swept: memory that was no longer reachable is free.
	Swept
	// Failed: something could not be done. It is tried again later.
	Failed
	// Configured: the store's configuration was replaced.
	Configured
	// Fenced: an epoch has begun in which nothing is swept.
	Fenced
)

// Whats is how many kinds of events there are: they are numbered from 1 on.
const Whats = int(Fenced)

var whats = [Whats + 1]string{
	"", "elected", "lost", "expelled", "mended", "restored", "recovered", "attached", "swept", "failed",
	"configured", "fenced",
}

func (w What) String() string { return whats[w] }

// Event is one thing that a keeper did. Fields that do not apply to its kind are zero.
type Event struct {
	// At is the time on the endpoint's clock, which other processes do not share.
	At   time.Duration
	What What
	// Tenure is that of the master that reports the event; 0: the process is not master.
	Tenure uint64
	// Epoch is the view's; of Elected and Lost the tenure's.
	Epoch uint64
	// Node was expelled or restored, and Spare stands for it now.
	Node  int
	Spare int
	// Client was recovered; of Lost it is the present master, of which only the ID is known, or the
	// client that asked for the end of the tenure.
	Client rdma.Client
	// Took is how long it took: of Mended, Restored, Recovered, Attached, Swept and Configured.
	Took time.Duration
	// Report is what the recoverer says, in lines: of Recovered, Attached, Configured, and of the
	// Mended of a Grower.
	Report string
	Err    error // of Failed
}

func (e Event) String() string {
	took := e.Took.Round(time.Microsecond)
	switch e.What {
	case Elected:
		return fmt.Sprintf("elected master (tenure %d)", e.Epoch)
	case Lost:
		if e.Client.ID == 0 {
			return "master no more"
		}
		return fmt.Sprintf("master no more: client %d is", e.Client.ID)
	case Expelled:
		return fmt.Sprintf("node %d is gone: expelled in epoch %d", e.Node, e.Epoch)
	case Mended:
		if e.Report != "" {
			return fmt.Sprintf("replicas mended in epoch %d, in %v: %s", e.Epoch, took, e.Report)
		}
		return fmt.Sprintf("replicas mended in epoch %d, in %v", e.Epoch, took)
	case Restored:
		return fmt.Sprintf("node %d stands for node %d since epoch %d, after %v", e.Spare, e.Node, e.Epoch, took)
	case Recovered:
		return fmt.Sprintf("client %d %q recovered in %v", e.Client.ID, e.Client.Name, took)
	case Attached:
		return fmt.Sprintf("client %d %q recovered in %v; its process is attached and keeps the identity", e.Client.ID,
			e.Client.Name, took)
	case Swept:
		if took == 0 { // the store has no sweep
			return "blocks that clients left swept"
		}
		return fmt.Sprintf("blocks that clients left swept in %v", took)
	case Configured:
		return e.Report
	case Fenced:
		return fmt.Sprintf("epoch %d has begun", e.Epoch)
	}
	return fmt.Sprintf("failed: %v", e.Err)
}
