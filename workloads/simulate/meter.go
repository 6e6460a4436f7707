package simulate

import (
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

// meter counts the verbs of each kind of call of one worker.
type meter struct {
	workloads.DB
	count *rdma.Counters
	calls [workloads.Ops]uint64
	verbs [workloads.Ops]rdma.Counters
}

func (m *meter) measure(op workloads.Op, call func() error) error {
	before := *m.count
	err := call()
	m.calls[op]++
	m.verbs[op] = m.verbs[op].Add(m.count.Sub(before))
	return err
}

// Read implements workloads.DB.
func (m *meter) Read(key []byte, r *workloads.Record) error {
	return m.measure(workloads.OpRead, func() error { return m.DB.Read(key, r) })
}

// Update implements workloads.DB.
func (m *meter) Update(key []byte, r *workloads.Record) error {
	return m.measure(workloads.OpUpdate, func() error { return m.DB.Update(key, r) })
}

// Insert implements workloads.DB.
func (m *meter) Insert(key []byte, r *workloads.Record) error {
	return m.measure(workloads.OpInsert, func() error { return m.DB.Insert(key, r) })
}

// Scan implements workloads.DB.
func (m *meter) Scan(start []byte, n int, r *workloads.Record, yield func()) error {
	return m.measure(workloads.OpScan, func() error { return m.DB.Scan(start, n, r, yield) })
}
