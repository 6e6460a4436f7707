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
	r := Record{Order{7, 0x0102030405_06}, 0x0809, []byte("key"), []byte("value")}
	p := make([]byte, RecordSize(r.Key, r.Value))
	r.Put(p)
	const want = "0605040302010908" + "0700000003000000" + "6b6579" + "76616c7565"
	if got := hex.EncodeToString(p); got != want {
		t.Errorf("record is %s, want %s", got, want)
	}
	again, ok := ParseRecord(p)
	if !ok || again.Order != r.Order || again.Shard != r.Shard || !bytes.Equal(again.Key, r.Key) ||
		!bytes.Equal(again.Value, r.Value) {
		t.Errorf("%+v is read as %+v, %t", r, again, ok)
	}
	for n := range RecordBytes + len(r.Key) {
		if _, ok := ParseRecord(p[:n]); ok {
			t.Errorf("%d bytes are a record", n)
		}
	}
}

// TestOrder: a higher term is newer, whatever the versions are.
func TestOrder(t *testing.T) {
	all := []Order{{1, 1}, {1, 2}, {2, 1}, {3, 0}}
	for i, a := range all {
		for j, b := range all {
			if a.Before(b) != (i < j) {
				t.Errorf("%v before %v: %t", a, b, a.Before(b))
			}
		}
	}
}

// TestRequest: what is no request is refused.
func TestRequest(t *testing.T) {
	q := Request{Term: 3, Key: []byte("key"), Value: []byte("value")}
	p := q.Append(nil)
	r, err := ParseRequest(p)
	if err != nil || r.Term != 3 || string(r.Key) != "key" || string(r.Value) != "value" {
		t.Errorf("%+v is read as %+v, %v", q, r, err)
	}
	for n := range requestBytes + len(q.Key) {
		if _, err := ParseRequest(p[:n]); err == nil {
			t.Errorf("%d bytes are a request", n)
		}
	}
	p[15] = 1
	if _, err := ParseRequest(p); err == nil {
		t.Error("a request has a key of an exabyte")
	}
}
