package runner

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

// perishable is a database that is gone from some moment on. Its calls fail then, after their
// timeout, and so does Close.
type perishable struct {
	nothing
	ends time.Time
}

const callTimeout = 2 * time.Second

func (p *perishable) over() bool { return !time.Now().Before(p.ends) }

func (p *perishable) Open(int) (workloads.DB, error) { return p, nil }

func (p *perishable) Read([]byte, *workloads.Record) error {
	time.Sleep(time.Millisecond)
	if p.over() {
		time.Sleep(callTimeout)
		return rdma.ErrNodeDown
	}
	return nil
}

func (p *perishable) Update(key []byte, r *workloads.Record) error { return p.Read(key, r) }

func (p *perishable) Close() error {
	if p.over() {
		return rdma.ErrUnreachable
	}
	return nil
}

func (p *perishable) Gone() error {
	if p.over() {
		return rdma.ErrNoPool
	}
	return nil
}

// TestGone: when its database is gone, a run ends with the operations that have begun. The reason
// comes before all other errors.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		db := &perishable{ends: began.Add(10 * time.Second)}
		res, err := Run(t.Context(), configure(t, db, "threadcount=3", "operationcount=1000000"))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 10*time.Second+callTimeout+2*gonePeriod {
			t.Errorf("it ended after %v", took)
		}
		checkGone(t, res)
	})
}

func checkGone(t *testing.T, res *Result) {
	t.Helper()
	if !errors.Is(res.Gone(), rdma.ErrNoPool) || res.Interrupted || res.Operations == 0 {
		t.Errorf("gone: %v, interrupted: %v, %d operations", res.Gone(), res.Interrupted, res.Operations)
	}
	if !strings.HasPrefix(res.Problem, "the pool is gone: ") ||
		strings.Contains(res.Problem, rdma.ErrUnreachable.Error()) {
		t.Error(res.Problem)
	}
}

// TestGoneWakesSleepers: such a run also ends at once when its workers sleep, here for a minute.
func TestGoneWakesSleepers(t *testing.T) {
	db := &perishable{ends: time.Now().Add(100 * time.Millisecond)}
	c := configure(t, db, "threadcount=2", "operationcount=1000")
	c.Target = 1. / 60
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	res, err := Run(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	checkGone(t, res)
}
