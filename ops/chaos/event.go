package chaos

import (
	"errors"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/telemetry"
)

const (
	eventPause = 200 * time.Millisecond // a break may be about to make the pool busy
	// of a command: what keeps its pool from an event is no reason to keep its user waiting
	eventWait = 3 * time.Second
)

// event is a break as the pool's events have it.
func (b *Broken) event(p *stores.Pool) telemetry.Event {
	e := telemetry.Event{At: b.At, What: "broken", Epoch: p.Fabric.View().Epoch, Node: -1, Took: b.For, Text: b.Text}
	if len(b.Nodes) > 0 {
		e.Node = b.Nodes[0]
	}
	if b.Client != nil {
		e.Client = b.Client.ID
	}
	return e
}

// appendEvent adds an event to those that a pool keeps. A pool that keeps none, or cannot be
// written to after several tries, goes without.
func appendEvent(p *stores.Pool, e telemetry.Event) {
	for end := time.Now().Add(eventWait); ; time.Sleep(eventPause) {
		err := tryEvent(p, e)
		if err == nil || errors.Is(err, telemetry.ErrNone) || errors.Is(err, telemetry.ErrVersion) ||
			time.Now().After(end) {
			return
		}
	}
}

func tryEvent(p *stores.Pool, e telemetry.Event) error {
	ep, err := p.Fabric.Open("crash")
	if err != nil {
		return err
	}
	r, err := telemetry.Find(ep, p.Fabric.Nodes())
	if err == nil {
		v, wrong := ep.Join()
		if err = wrong; err == nil {
			err = r.Append(ep, &v, []telemetry.Event{e}, eventPause)
		}
	}
	return errors.Join(err, ep.Close())
}
