package control

import (
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Message is what connections for control carry, and reply the answer to it. They are rare, so that
// they are JSON. Links ask a question again when a connection broke before the answer: see
// transport.Ask. So a node may execute a message twice. No kind that links ask does harm then: what
// it asks for is already so the second time.
//
// Pool is the ID of the pool that the message is about. It is the pool, and the asked node is the
// one of its nodes, that the connection's Hello named: a node refuses any other (memnode's
// conn.mayAct). Only DoInspect and DoBye need none. A node that is not of the pool answers
// rdma.ErrNodeDown, unless it is to adopt, seal or drop it.
//
// Record is DoAdopt's, with the Index of the node that is asked, and Force is DoDrop's. Ask is
// DoRegistry's. Epoch is the one that DoFence fences, or the busy epoch of the master that orders
// DoExpel. Node is the one that DoExpel expels, which may be the asked one itself. Client and Life
// are DoRevoke's. Fault is DoFault's. A peer's DoLease has none of them: its connection says which
// node it is.
type Message struct {
	Do     string               `json:"do"`
	Pool   string               `json:"pool,omitempty"`
	Record *Record              `json:"record,omitempty"`
	Force  bool                 `json:"force,omitempty"`
	Ask    *membership.Question `json:"ask,omitempty"`
	Epoch  uint64               `json:"epoch,omitempty"`
	Node   int                  `json:"node,omitempty"`
	Client rdma.ClientID        `json:"client,omitempty"`
	Life   uint64               `json:"life,omitempty"`
	Fault  *Fault               `json:"fault,omitempty"`
	// of an inspection: the process that asks, which is not to be counted
	Self string `json:"self,omitempty"`
}

// What a message may ask for.
const (
	// The read token suffices for DoInspect, DoAttached, DoBye and questions of DoRegistry that
	// change nothing.
	DoInspect  = "inspect"  // what the node is
	DoAdopt    = "adopt"    // see Node.adopt
	DoSeal     = "seal"     // see Node.seal
	DoDrop     = "drop"     // see Node.drop
	DoRegistry = "board"    // a question to the pool's registry; a list is answered with the processes that are alive
	DoFence    = "fence"    // see rdma.Control.Fence
	DoRevoke   = "revoke"   // see rdma.Fabric.Revoke
	DoExpel    = "expel"    // see pool.expel
	DoAttached = "attached" // the processes that are alive
	DoBye      = "bye"      // the process ends: it does not wait to be found dead
	DoLease    = "lease"    // a peer asks for a lease
	DoFault    = "fault"    // see Fault
)

// Reply is the answer to a Message. A status in the frame's header says which error it is, so that
// Text is for people. Info answers DoInspect. Answer answers DoRegistry. Attached answers
// DoAttached, and a question of DoRegistry that lists: the names of the processes that are alive as
// far as this node knows.
type Reply struct {
	Text     string             `json:"text,omitempty"` // of the error
	Info     *NodeInfo          `json:"info,omitempty"`
	Answer   *membership.Answer `json:"answer,omitempty"`
	Attached []string           `json:"attached,omitempty"`
}

func (m *Message) String() string { return m.Do }

// Why is the error that the node answers; "": none.
func (r Reply) Why() string { return r.Text }

// NodeInfo is what a node tells of itself. It tells it to any caller that knows a token, in a pool
// or not. Sealed, Epoch, Expelled, Lease and Fault are of the pool, and zero without one.
type NodeInfo struct {
	Address     string        `json:"address"`
	Incarnation uint64        `json:"incarnation"` // another one remembers nothing of this
	PID         int           `json:"pid"`
	Commit      string        `json:"commit,omitempty"` // that the program was built from: see version.Commit
	Memory      uint64        `json:"memory"`           // bytes that it offers
	Fabric      string        `json:"fabric,omitempty"` // that its device's verbs go over; "": it has none
	Pool        *Record       `json:"pool,omitempty"`   // nil: none
	Sealed      bool          `json:"sealed,omitempty"` // the pool may be opened
	Epoch       uint64        `json:"epoch,omitempty"`  // that was fenced last
	Expelled    bool          `json:"expelled,omitempty"`
	Lease       time.Duration `json:"lease,omitempty"` // for which it may serve yet; maximal when it needs none
	Fault       *Fault        `json:"fault,omitempty"` // that it suffers, on purpose
	Processes   int           `json:"processes"`       // of clients and readers, without servers
	Stats       NodeStats     `json:"stats"`
	// Survives is what its memory outlives, and SurvivesBy how: see pmem.Survival.
	Survives   string `json:"survives,omitempty"`
	SurvivesBy string `json:"survives_by,omitempty"`
	// Server is the one of a store beside the node; nil: there is none, or it has not begun yet.
	Server *Server `json:"server,omitempty"`
	// PMem are counters of the machine's persistent memory; nil: nothing is known of it.
	PMem *telemetry.PMem `json:"pmem,omitempty"`
}

// Server is what a node tells of a store's server beside it. The server gives it when the node is
// asked, so that it is as of that moment.
type Server struct {
	Store   string `json:"store"`
	Problem string `json:"problem,omitempty"` // why it does not serve; "": it does
	// Waits says that it does not serve yet all that the pool's configuration has it serve.
	Waits bool `json:"waits,omitempty"`
	// Counts are what it has, and has done, as it names that.
	Counts []telemetry.Counter `json:"counts,omitempty"`
}

// NodeStats is what a node has done since it began. Counters are added once for each batch of
// frames, and read one after another: they are of about the same moment.
type NodeStats struct {
	Reads       uint64 `json:"reads"` // verbs that succeeded
	Writes      uint64 `json:"writes"`
	Atomics     uint64 `json:"atomics"`
	Calls       uint64 `json:"calls"`
	Sends       uint64 `json:"sends"` // messages that were delivered, and entries that landed
	BytesRead   uint64 `json:"bytes_read"`
	BytesWrote  uint64 `json:"bytes_wrote"`
	Frames      uint64 `json:"frames"`  // answered
	Flushes     uint64 `json:"flushes"` // writes to connections; frames by flushes tell how well they coalesce
	Access      uint64 `json:"access"`  // verbs that were refused, by why
	Revoked     uint64 `json:"revoked"`
	Stale       uint64 `json:"stale"`
	Failed      uint64 `json:"failed"`
	Connections int    `json:"connections"` // now
	Refused     uint64 `json:"refused"`     // connections that were not let in, but for failed authentication
	// Of these, for lack of room, because they said nothing in time, or speak another version; the
	// others broke a rule.
	RefusedRoom    uint64 `json:"refused_room"`
	RefusedSilent  uint64 `json:"refused_silent"`
	RefusedVersion uint64 `json:"refused_version"`
	AuthFailures   uint64 `json:"auth_failures"` // connections with a wrong token, or where TLS did not come about
	Slow           uint64 `json:"slow"`          // connections that were ended because they did not take their answers
	// connections that were ended because they did not keep to the protocol
	Breaches uint64 `json:"breaches"`
	// CPUSeconds is the processor time that the node's process has used, in user and kernel mode.
	CPUSeconds float64 `json:"cpu_seconds"`
}
