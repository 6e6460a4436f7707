package main

import (
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
)

// device is what this process asked of an RDMA device so far.
type device runner.Device

// deviceOf returns nil where a database's verbs go over none.
func deviceOf(db drivers.Database) *device {
	f, _, ok := drivers.Inside(db)
	if !ok {
		return nil
	}
	s, name, port, ok := fabrics.DeviceOf(f)
	if !ok {
		return nil
	}
	p, _ := fabrics.PacketsOf(f)
	return &device{Name: name, Port: port, Calls: s.Calls(), Waits: s.Waits, Sent: p.Sent, Received: p.Received}
}

func (d *device) since(before *device) *runner.Device {
	if d == nil || before == nil {
		return nil
	}
	return &runner.Device{
		Name: d.Name, Port: d.Port, Calls: d.Calls - before.Calls, Waits: d.Waits - before.Waits,
		Sent: grown(before.Sent, d.Sent), Received: grown(before.Received, d.Received),
	}
}

// grown is by how much a counter grew; that of a port which was down in between began anew.
func grown(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}
