package kv

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/farkv/farkv/node/rowan"
)

// FuzzRequest has one encoding a request: whatever is taken for one is what Append makes of it.
func FuzzRequest(f *testing.F) {
	key, value := []byte("key"), []byte("value")
	for _, q := range []Request{{}, {Term: 3, Key: key}, {Term: 1<<64 - 1, Key: key, Value: value}} {
		f.Add(q.Append(nil))
	}
	// a length of 2^16 + 3
	f.Add([]byte("\x03\x00\x00\x00\x00\x00\x00\x00" + "\x03\x00\x01\x00\x00\x00\x00\x00" + "key"))
	f.Fuzz(func(t *testing.T, p []byte) {
		q, err := ParseRequest(p)
		if err != nil {
			return
		}
		if again := q.Append(nil); !bytes.Equal(again, p) {
			t.Errorf("%x is read as %+v, which is %x", p, q, again)
		}
		ends(t, q.Key)
	})
}

// FuzzRecord has one encoding a record, and reads the same of its beginning as of the whole.
func FuzzRecord(f *testing.F) {
	for _, r := range []Record{
		{}, {Order{7, 1}, 9, []byte("key"), nil},
		{Order{1<<32 - 1, 1<<48 - 1}, 1<<16 - 1, []byte("key"), []byte("value")},
	} {
		p := make([]byte, RecordSize(r.Key, r.Value))
		r.Put(p)
		f.Add(p, uint16(len(r.Key)))
		f.Add(append([]byte(nil), p[:len(p)-1]...), uint16(0))
		p[15] = 1 // what is 0
		f.Add(p, uint16(1000))
	}
	f.Fuzz(func(t *testing.T, p []byte, read uint16) {
		r, ok := ParseRecord(p)
		if !ok {
			return
		}
		again := make([]byte, RecordSize(r.Key, r.Value))
		if r.Put(again); !bytes.Equal(again, p) {
			t.Errorf("%x is read as %+v, which is %x", p, r, again)
		}
		ends(t, r.Key)

		entry := append(binary.LittleEndian.AppendUint64(nil, 0x5a7), make([]byte, rowan.HeaderBytes-8)...)
		entry = append(entry, p...)
		head := entry[:min(len(entry), HeadBytes+int(read))]
		e, ok := ParseFound(64, head)
		if whole := len(r.Key) <= len(head)-HeadBytes; ok != whole ||
			ok && (!bytes.Equal(e.Key, r.Key) || e.Order != r.Order || e.At != 64) {
			t.Errorf("%+v is read as %+v, %v, of its first %d bytes", r, e, ok, len(head))
		}
	})
}

// ends checks that what is appended to a key does not come into the value behind it.
func ends(t *testing.T, key []byte) {
	if cap(key) > len(key) {
		t.Errorf("a key of %d bytes has room for %d", len(key), cap(key))
	}
}

// TestFormatAllocations has requests and records written and read in memory that is the caller's.
func TestFormatAllocations(t *testing.T) {
	key, value := make([]byte, 24), make([]byte, 100)
	p, b := make([]byte, 0, 256), make([]byte, 256)
	if n := testing.AllocsPerRun(1000, func() {
		q := Request{Term: 3, Key: key, Value: value}
		q, err := ParseRequest(q.Append(p))
		r := Record{Order{1, 2}, 3, q.Key, q.Value}
		b := b[:RecordSize(r.Key, r.Value)]
		r.Put(b)
		if r, ok := ParseRecord(b); err != nil || !ok || len(r.Value) != len(value) {
			t.Fatalf("%v, %+v", err, r)
		}
	}); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
