package membership

import (
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

var shape = Options{Nodes: 3, Clients: 100}

// records are one of each, with the widest values.
var wide = map[string]any{
	viewKey: viewRecord{
		Epoch: math.MaxUint64, Busy: true, Down: []bool{true, false, true},
		Members: []uint64{0, rdma.Member{Gone: true}.Word(), rdma.Member{Gone: true, Replaces: 1<<15 - 1,
			Since: 1<<47 - 1}.Word()},
	},
	masterKey: masterRecord{Owner: 100, Life: math.MaxUint64, Epoch: 9, Until: math.MaxInt64,
		Lease: MaxLease, Turn: math.MaxUint64},
	clientKey(65535): clientRecord{Life: math.MaxUint64, Name: "\x00é\"", PID: 1, Process: "p", Machine: "m",
		InUse: true, Fenced: true, Closed: true},
}

func decodeAs(key string, value []byte) (any, error) {
	switch key {
	case viewKey:
		return decode[viewRecord](key, value, &shape)
	case masterKey:
		return decode[masterRecord](key, value, &shape)
	}
	return decode[clientRecord](key, value, &shape)
}

func TestRecords(t *testing.T) {
	for key, r := range wide {
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeAs(key, text)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := json.Marshal(got); string(again) != string(text) {
			t.Errorf("%s becomes %s", text, again)
		}
		for _, damaged := range []string{
			"", "null", "{}", "[]", "0", string(text[:len(text)-1]), string(text) + "{}",
			string(text[:len(text)-1]) + `,"new":1}`,
		} {
			if _, err := decodeAs(key, []byte(damaged)); !errors.Is(err, ErrDamaged) {
				t.Errorf("%s as %q is read: %v", damaged, key, err)
			}
		}
	}
	for _, r := range []struct {
		key    string
		record any
	}{
		{viewKey, viewRecord{Members: make([]uint64, 2), Down: make([]bool, 3)}},
		{viewKey, viewRecord{Members: []uint64{1 << 62, 0, 0}, Down: make([]bool, 3)}},
		{masterKey, masterRecord{Epoch: 1, Turn: 1, Lease: 2 * time.Minute}},
		{masterKey, masterRecord{Owner: 101, Epoch: 1, Turn: 1, Lease: MaxLease}},
		{"client/00001", clientRecord{Life: 1, Fenced: true}},
		{"client/00001", clientRecord{Life: 1, InUse: true, Closed: true}},
		{"client/00001", clientRecord{InUse: true}},
	} {
		text, _ := json.Marshal(r.record)
		if _, err := decodeAs(r.key, text); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s is read: %v", text, err)
		}
	}
	for _, key := range []string{"", "client/", "client/1", "client/000001", "client/99999",
		"client/-0001", "clients/00001"} {
		if id, err := clientOf(key); !errors.Is(err, ErrDamaged) {
			t.Errorf("%q is that of client %d: %v", key, id, err)
		}
	}
	if id, err := clientOf(clientKey(17)); id != 17 || err != nil || clientKey(17) != "client/00017" {
		t.Errorf("%s, %d, %v", clientKey(17), id, err)
	}
}

// TestDamagedRecords has a registry read nonsense: each call says so.
func TestDamagedRecords(t *testing.T) {
	s := Memory()
	b := New(s, Options{Nodes: 3, Clients: 4, Process: "p", Now: func() time.Duration { return 0 }})
	for _, key := range []string{viewKey, masterKey, clientKey(2)} {
		if ok, err := s.Swap(key, 0, []byte("{")); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	c := rdma.Client{ID: 2, Life: 1}
	_, _, view := b.View()
	_, advance := b.Advance(rdma.State{}, rdma.State{Epoch: 1})
	_, member := b.SetMember(1, 1, rdma.Member{}, rdma.Member{Gone: true})
	_, _, master := b.TryMaster(1, time.Second)
	_, _, renew := b.Renew(rdma.Role{Owner: 1}, time.Second)
	_, _, _, role := b.Master()
	_, claim := b.Claim("c")
	_, clients := b.Clients()
	_, _, _, look := b.Look()
	for what, err := range map[string]error{
		"view": view, "advance": advance, "member": member, "down": b.SetDown(1, 1), "try": master,
		"renew": renew, "master": role, "claim": claim, "clients": clients, "look": look, "mark": b.MarkFenced(c),
		"release": b.Release(c), "forget": b.Forget(c, nil),
	} {
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s = Memory()
	s.Swap("client/5", 0, []byte("{}"))
	if _, err := New(s, Options{Clients: 4}).Clients(); !errors.Is(err, ErrDamaged) {
		t.Errorf("a stranger among the clients: %v", err)
	}
}

// FuzzRecords reads anything: what is no error is written back as it was read.
func FuzzRecords(f *testing.F) {
	for key, r := range wide {
		text, _ := json.Marshal(r)
		f.Add(key, text)
	}
	f.Add("client/00001", []byte(`{"life":1,"in_use":true,"fenced":true} `))
	f.Fuzz(func(t *testing.T, key string, text []byte) {
		clientOf(key)
		r, err := decodeAs(key, text)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeAs(key, again)
		if once, _ := json.Marshal(back); err != nil || string(once) != string(again) {
			t.Errorf("%q is read as %s, then %s (%v)", text, again, once, err)
		}
	})
}
