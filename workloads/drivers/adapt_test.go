package drivers

import (
	"context"
	"testing"

	"github.com/pingcap/go-ycsb/pkg/ycsb"

	"github.com/farkv/farkv/workloads/runner"
)

// picky is an upstream driver in the manner of redis: it knows no record by no fields, nor one that
// lacks a field.
type picky struct {
	ycsb.DB
	row map[string][]byte
}

func (d picky) Read(_ context.Context, _, _ string, fields []string) (map[string][]byte, error) {
	got := map[string][]byte{}
	for _, name := range fields {
		v, ok := d.row[name]
		if !ok {
			return nil, nil
		}
		got[name] = v
	}
	return got, nil
}

func TestForeignReadsAllFields(t *testing.T) {
	spec, err := runner.ReadSpec(props("fieldcount=3"))
	if err != nil {
		t.Fatal(err)
	}
	for _, names := range [][]string{{"field0", "field1", "field2"}, {"field1"}, {}} {
		d := picky{row: map[string][]byte{}}
		for _, name := range names {
			d.row[name] = []byte("x")
		}
		row, err := newForeign(d, spec, 1).Read(context.Background(), "t", "k", nil)
		if err != nil || len(row) != len(names) {
			t.Errorf("of %v it reads %v, %v", names, row, err)
		}
	}
}
