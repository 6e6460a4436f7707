package chaos

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
)

// lapsing is a pool with two candidates for its master, which are other processes. The role of the
// master has lapsed for the first looks.
type lapsing struct {
	rdma.Fabric
	lapsed int
}

func (l *lapsing) Master() (rdma.Role, time.Duration, bool) {
	l.lapsed--
	return rdma.Role{Owner: 2}, time.Second, l.lapsed < 0
}

func (*lapsing) Clients() (all []rdma.Client) {
	for i := range 2 {
		all = append(all, rdma.Client{ID: rdma.ClientID(1 + i), PID: os.Getpid() + 1 + i, Name: stores.KeeperName,
			Alive: true})
	}
	return all
}

func (*lapsing) CrashClient(rdma.Client, rdma.Step) error { return nil }

// TestLapsedMaster: a master that prolongs its role late is the master all the same, for one break
// and for those of a schedule. The wait for it
// ends with the context.
func TestLapsedMaster(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	if _, err := ops.Up("shm:lapsing", "fusee", stores.Params{Records: 1000}); err != nil {
		t.Fatal(err)
	}
	b, err := NewBreaker("shm:lapsing")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	own := &lapsing{Fabric: b.pool.Fabric, lapsed: 3}
	b.pool.Fabric = own
	what := &Break{Kind: BreakMaster, Target: Target{Master: true}}
	if done, err := b.do(t.Context(), what); err != nil || done.Client == nil || done.Client.ID != 2 {
		t.Errorf("a break: %+v, %v", done, err)
	}
	own.lapsed = 3
	r := &scheduled{Schedule: Schedule{Kinds: []BreakKind{BreakMaster}}, b: b}
	if what, err := r.choose(t.Context(), 0); err != nil || !what.Master {
		t.Errorf("of a schedule: %+v, %v", what, err)
	}
	own.lapsed = 1 << 30
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if done, err := b.do(over, what); err == nil {
		t.Errorf("without a master, and without time: %+v", done)
	}
}
