package simulate

import (
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

// meter counts the verbs of each kind of call of one worker, and those calls that ended well by
// their trips.
type meter struct {
	workloads.DB
	env   *env
	count *rdma.Counters
	calls [workloads.Ops]uint64
	verbs [workloads.Ops]rdma.Counters
	trips [workloads.Ops]tripCount
	took  time.Duration // of all calls since this was read last
}

// tripCount has a number of calls for each number of trips; the last for all that took as many or
// more.
type tripCount [128]uint64

func (t *tripCount) add(trips uint64) { t[min(trips, uint64(len(t)-1))]++ }

func (t *tripCount) merge(o *tripCount) {
	for i, n := range o {
		t[i] += n
	}
}

// shares returns which share of the calls took how many trips, up to the most that any took.
func (t *tripCount) shares() (list []float64) {
	all, most := uint64(0), 0
	for i, n := range t {
		if all += n; n > 0 {
			most = i + 1
		}
	}
	for _, n := range t[:most] {
		list = append(list, float64(n)/float64(all))
	}
	return list
}

func (m *meter) measure(op workloads.Op, call func() error) error {
	before, start := *m.count, m.env.Now()
	err := call()
	m.took += m.env.Now() - start
	used := m.count.Sub(before)
	m.calls[op]++
	m.verbs[op] = m.verbs[op].Add(used)
	if err == nil {
		m.trips[op].add(used.Trips)
	}
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
