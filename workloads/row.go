package workloads

import (
	"encoding/binary"
	"fmt"

	"github.com/farkv/farkv/client"
)

// A record of several fields is stored as a row in the layout of go-ycsb's RowCodec: for each field
// a flag and its number, a flag and its length, both as signed varints, then its bytes. A record of
// one field is stored bare.
const (
	flagInteger = 8
	flagBytes   = 2
)

// RowBytes is the most bytes that a row of so many fields of such a length takes.
func RowBytes(fields, length int) int {
	if fields == 1 {
		return length
	}
	var b [binary.MaxVarintLen64]byte
	id := binary.PutVarint(b[:], int64(fields-1))
	return fields * (2 + id + binary.PutVarint(b[:], int64(length)) + length)
}

func appendColumn(b []byte, field int, value []byte) []byte {
	b = binary.AppendVarint(append(b, flagInteger), int64(field))
	b = binary.AppendVarint(append(b, flagBytes), int64(len(value)))
	return append(b, value...)
}

// appendRow appends the fields of values that are there (not nil).
func appendRow(b []byte, values [][]byte) []byte {
	if len(values) == 1 {
		return append(b, values[0]...)
	}
	for i, v := range values {
		if v != nil {
			b = appendColumn(b, i, v)
		}
	}
	return b
}

// decodeRow points values at the fields in row; those that row lacks become nil. The error wraps
// client.ErrDamaged.
func decodeRow(row []byte, values [][]byte) error {
	if len(values) == 1 {
		values[0] = row
		return nil
	}
	clear(values)
	for rest := row; len(rest) > 0; {
		field, after, ok := cutVarint(rest, flagInteger)
		if !ok {
			return rowError(row, rest, "no field number")
		}
		n, body, ok := cutVarint(after, flagBytes)
		if !ok || n < 0 || n > int64(len(body)) {
			return rowError(row, rest, "no whole value")
		}
		if field < 0 || field >= int64(len(values)) || values[field] != nil {
			return rowError(row, rest, fmt.Sprintf("field %d of %d", field, len(values)))
		}
		values[field] = body[:n:n]
		rest = body[n:]
	}
	return nil
}

func cutVarint(b []byte, flag byte) (v int64, rest []byte, ok bool) {
	if len(b) == 0 || b[0] != flag {
		return 0, nil, false
	}
	v, n := binary.Varint(b[1:])
	if n <= 0 {
		return 0, nil, false
	}
	return v, b[1+n:], true
}

func rowError(row, rest []byte, what string) error {
	return fmt.Errorf("row of %d bytes, byte %d: %s: %w", len(row), len(row)-len(rest), what, client.ErrDamaged)
}
