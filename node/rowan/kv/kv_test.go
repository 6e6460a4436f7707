package kv

import (
	"bytes"
	"encoding/hex"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRecord: a format that is in use does not change.
func TestRecord(t *testing.T) {
	r := record{order{7, 0x0102030405_06}, 0x0809, []byte("key"), []byte("value")}
	p := make([]byte, recordSize(r.key, r.value))
	r.put(p)
	const want = "0605040302010908" + "0700000003000000" + "6b6579" + "76616c7565"
	if got := hex.EncodeToString(p); got != want {
		t.Errorf("record is %s, want %s", got, want)
	}
	again, ok := parseRecord(p)
	if !ok || again.order != r.order || again.shard != r.shard || !bytes.Equal(again.key, r.key) ||
		!bytes.Equal(again.value, r.value) {
		t.Errorf("%+v is read as %+v, %t", r, again, ok)
	}
	for n := range recordBytes + len(r.key) {
		if _, ok := parseRecord(p[:n]); ok {
			t.Errorf("%d bytes are a record", n)
		}
	}
}

// TestOrder: a higher term is newer, whatever the versions are.
func TestOrder(t *testing.T) {
	all := []order{{1, 1}, {1, 2}, {2, 1}, {3, 0}}
	for i, a := range all {
		for j, b := range all {
			if a.before(b) != (i < j) {
				t.Errorf("%v before %v: %t", a, b, a.before(b))
			}
		}
	}
}

// TestRequest: what is no request is refused.
func TestRequest(t *testing.T) {
	q := Request{Term: 3, Key: []byte("key"), Value: []byte("value")}
	p := q.Append(nil)
	r, err := parseRequest(p)
	if err != nil || r.Term != 3 || string(r.Key) != "key" || string(r.Value) != "value" {
		t.Errorf("%+v is read as %+v, %v", q, r, err)
	}
	for n := range requestBytes + len(q.Key) {
		if _, err := parseRequest(p[:n]); err == nil {
			t.Errorf("%d bytes are a request", n)
		}
	}
	p[15] = 1
	if _, err := parseRequest(p); err == nil {
		t.Error("a request has a key of an exabyte")
	}
}
