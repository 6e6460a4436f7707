package ops

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops/table"
)

// Events are what happened to a pool, oldest first.
type Events struct {
	Pool   string            `json:"pool"`
	Events []telemetry.Event `json:"events"`
}

// EventsOf returns the events that a pool keeps: about 256 on each of two nodes. It does not become
// a client of the pool.
func EventsOf(addr string) (*Events, error) {
	p, err := stores.Open(addr)
	if err != nil {
		return nil, Explain(err, addr)
	}
	defer p.Close()
	all, err := keptEvents(p)
	if err != nil {
		return nil, ExplainAt(fmt.Errorf("events of %s: %w", p.Address, err), p.Address)
	}
	return &Events{Pool: p.Address, Events: all}, nil
}

func keptEvents(p *stores.Pool) ([]telemetry.Event, error) {
	ep, err := rdma.Peek(p.Fabric, "events")
	if err != nil {
		return nil, err
	}
	all := []telemetry.Event{}
	r, err := telemetry.FindBehind(ep, p.Header)
	if err == nil {
		var found []telemetry.Event
		found, err = telemetry.NewReader(r).Events(ep)
		all = append(all, found...)
	}
	return all, errors.Join(err, ep.Close())
}

// Print implements Result.
func (e *Events) Print(w io.Writer) {
	if len(e.Events) == 0 {
		fmt.Fprintln(w, "no events are kept")
		return
	}
	of := func(n, none int) string {
		if n == none {
			return ""
		}
		return strconv.Itoa(n)
	}
	rows := [][]string{{"time", "event", "node", "client", "took", "what happened"}}
	for _, v := range e.Events {
		took := ""
		if rounded := v.Took.Round(time.Microsecond); rounded > 0 {
			took = rounded.String()
		}
		rows = append(rows, []string{v.At.Local().Format("2006-01-02 15:04:05.000"), v.What, of(v.Node, -1),
			of(v.Client, 0), took, v.Text})
	}
	table.Print(w, rows, 0, 1, 5)
}
