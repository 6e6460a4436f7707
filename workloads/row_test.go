package workloads

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/util"

	"github.com/farkv/farkv/client"
)

func upstreamCodec(fields int) *util.RowCodec {
	p := properties.NewProperties()
	p.MustSet("fieldcount", fmt.Sprint(fields))
	return util.NewRowCodec(p)
}

func TestRowIsUpstreams(t *testing.T) {
	const fields = 100 // two-byte field numbers too
	values := make([][]byte, fields)
	byName := map[string][]byte{}
	for i := range values {
		if i%7 == 3 {
			continue
		}
		values[i] = bytes.Repeat([]byte{byte('a' + i%26)}, i*3)
		byName[fmt.Sprintf("field%d", i)] = values[i]
	}
	row := appendRow(nil, values)
	if len(row) > RowBytes(fields, 99*3) {
		t.Errorf("row of %d bytes, at most %d expected", len(row), RowBytes(fields, 99*3))
	}
	decoded, err := upstreamCodec(fields).Decode(row, nil)
	if err != nil || len(decoded) != len(byName) {
		t.Fatalf("upstream decodes %d fields of %d: %v", len(decoded), len(byName), err)
	}
	for name, v := range byName {
		if !bytes.Equal(decoded[name], v) {
			t.Errorf("upstream reads %s as %q, want %q", name, decoded[name], v)
		}
	}
	theirs, err := upstreamCodec(fields).Encode(nil, byName)
	if err != nil {
		t.Fatal(err)
	}
	got := make([][]byte, fields)
	if err := decodeRow(theirs, got); err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if !bytes.Equal(got[i], values[i]) || (got[i] == nil) != (values[i] == nil) {
			t.Errorf("field %d of upstream's row is %q, want %q", i, got[i], values[i])
		}
	}
}

func TestRowOfOneFieldIsBare(t *testing.T) {
	row := appendRow(nil, [][]byte{[]byte("value")})
	if string(row) != "value" || RowBytes(1, 5) != 5 {
		t.Fatalf("row %q, %d bytes", row, RowBytes(1, 5))
	}
}

func FuzzDecodeRow(f *testing.F) {
	f.Add([]byte{}, 3)
	f.Add(appendRow(nil, [][]byte{[]byte("a"), nil, []byte("ccc")}), 3)
	f.Add([]byte{8, 0, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, 2)
	f.Add([]byte{8, 0, 2, 2, 'a', 8, 0, 2, 2, 'b'}, 2)
	f.Fuzz(func(t *testing.T, row []byte, fields int) {
		fields = 2 + int(uint(fields)%64)
		values := make([][]byte, fields)
		if err := decodeRow(row, values); err != nil {
			if !errors.Is(err, client.ErrDamaged) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		again := make([][]byte, fields)
		if err := decodeRow(appendRow(nil, values), again); err != nil {
			t.Fatal(err)
		}
		for i := range values {
			if !bytes.Equal(values[i], again[i]) {
				t.Fatalf("field %d: %q became %q", i, values[i], again[i])
			}
		}
	})
}
