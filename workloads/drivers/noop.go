package drivers

import (
	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// noop answers at once and keeps nothing: what is measured with it is the harness.
type noop struct{ runner.NoPool }

type noopCreator struct{}

func (noopCreator) Create(p *properties.Properties) (ycsb.DB, error) {
	s, err := runner.ReadSpec(p)
	if err != nil {
		return nil, err
	}
	if s.DataIntegrity {
		return nil, workloads.Usagef("noop keeps nothing: dataintegrity=true has nothing to check")
	}
	return native{Database: noop{}, fields: fieldNames(s.FieldCount)}, nil
}

func (noop) Open(int) (workloads.DB, error) { return noopDB{}, nil }
func (noop) Close() error                   { return nil }

type noopDB struct{}

func (noopDB) Read([]byte, *workloads.Record) error              { return nil }
func (noopDB) Update([]byte, *workloads.Record) error            { return nil }
func (noopDB) Insert([]byte, *workloads.Record) error            { return nil }
func (noopDB) Delete([]byte) error                               { return nil }
func (noopDB) Scan([]byte, int, *workloads.Record, func()) error { return nil }
func (noopDB) Counters() *rdma.Counters                          { return nil }
func (noopDB) Close() error                                      { return nil }
