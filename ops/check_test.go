package ops

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/wait"
)

// TestCheckBesideKeepers: keepers do nothing during the walk, and what there is to do behind it.
// Where they do something the findings do not count. Clients of other names are users.
func TestCheckBesideKeepers(t *testing.T) {
	p, err := stores.Create("mem:", "fusee", stores.Params{Records: 1000, Nodes: 3, DataReplicas: 2, IndexReplicas: 2,
		Clients: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 2 {
		if err := p.Keep(cluster.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	kind := *p.Kind
	walk := kind.Check
	p.Kind = &kind
	kind.Check = func(f rdma.Fabric) (stores.Report, error) {
		r, err := walk(f)
		victim, opened := f.Open("victim")
		if err := errors.Join(opened, f.Revoke(victim.Client()), victim.Close()); err != nil {
			t.Error(err)
		}
		time.Sleep(6 * stores.Lease) // longer than the tenure that a Hold begins with
		if !strings.Contains(dead(f), "victim") {
			t.Errorf("a client was recovered during the walk: %s", dead(f))
		}
		return r, err
	}
	f, users, err := CheckOpen(t.Context(), p, false)
	if err != nil || len(users) > 0 || !f.Sound || len(f.Keepers) != 2 || len(f.Live) > 0 {
		t.Fatalf("two keepers live: %+v, users %v, %v", f, users, err)
	}
	for until := time.Now().Add(wait.Hang); dead(p.Fabric) != "" && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	if left := dead(p.Fabric); left != "" {
		t.Errorf("keepers did not go on behind the check: %s are left", left)
	}

	kind.Check = func(f rdma.Fabric) (stores.Report, error) {
		r, err := walk(f)
		f.Resign(*f.(held).last)
		return r, err
	}
	p.Fabric = held{p.Fabric, new(rdma.Role)} // before the first renewal
	if _, _, err = CheckOpen(t.Context(), p, false); !errors.Is(err, rdma.ErrStale) ||
		!strings.Contains(err.Error(), "nothing found counts") {
		t.Errorf("the tenure was over during the walk: %v", err)
	}

	kind.Check = walk
	user, err := p.Fabric.Open("user")
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	if _, users, err = CheckOpen(t.Context(), p, false); !errors.Is(err, fabrics.ErrInUse) || len(users) != 1 {
		t.Errorf("a user lives: %v, %v", users, err)
	}
	if f, _, err = CheckOpen(t.Context(), p, true); err != nil || len(f.Live) != 3 || len(f.Keepers) > 0 {
		t.Errorf("forced, while a user lives: %+v, %v", f, err)
	}
}

// dead names the clients that wait for recovery.
func dead(f rdma.Fabric) string {
	var names []string
	for _, c := range f.Clients() {
		if !c.Alive {
			names = append(names, c.Name)
		}
	}
	return strings.Join(names, " ")
}

// held is a fabric of which the last tenure is known.
type held struct {
	rdma.Fabric
	last *rdma.Role
}

func (h held) TryMaster(owner rdma.ClientID, lease time.Duration) (rdma.Role, bool, error) {
	r, ok, err := h.Fabric.TryMaster(owner, lease)
	if ok {
		*h.last = r
	}
	return r, ok, err
}
