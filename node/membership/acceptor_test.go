package membership

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestAcceptorAgainstModel asks anything in any order: promises are kept, what was accepted last is
// told, and limits hold.
func TestAcceptorAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{Keys: 2, Key: 3, Value: 4, Bytes: 2*(slotBytes+3) + 6}
		a := NewAcceptor(limits)
		promised, accepted := map[string]Ballot{}, map[string]Entry{}
		bytes := rapid.SliceOfN(rapid.Byte(), 0, 6)
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				q := &Question{
					Kind: rapid.SampledFrom([]Kind{KindPrepare, KindAccept, KindPeek}).Draw(t, "kind"),
					Key:  rapid.SampledFrom([]string{"a", "b", "c", "long"}).Draw(t, "key"),
					Ballot: Ballot{rapid.Uint64Range(0, 5).Draw(t, "counter"),
						rapid.SampledFrom([]string{"", "p", "q"}).Draw(t, "proposer")},
				}
				if q.Kind == KindAccept {
					q.State = State{Version: rapid.Uint64().Draw(t, "version"), Value: bytes.Draw(t, "value")}
				}
				answer := a.Answer(q)
				last, refused := promised[q.Key], answer.Promised != (Ballot{})
				switch {
				case q.Kind == KindPeek:
				case answer.Refusal != "":
					return
				case q.Ballot.Counter == 0 || q.Ballot.Proposer == "" || len(q.Key) > limits.Key ||
					len(q.State.Value) > limits.Value:
					t.Fatalf("%+v is accepted", q)
				case refused != (q.Ballot.Compare(last) < 0) || refused && answer.Promised != last:
					t.Fatalf("after a promise of %v, %+v is answered by %+v", last, q, answer)
				case refused:
					return
				default:
					promised[q.Key] = q.Ballot
				}
				if q.Kind == KindAccept {
					accepted[q.Key] = Entry{Ballot: q.Ballot, State: q.State}
					return
				}
				got, want := answer.Entries[0], accepted[q.Key]
				if got.Ballot != want.Ballot || got.State.Version != want.State.Version ||
					string(got.State.Value) != string(want.State.Value) {
					t.Fatalf("%+v was accepted, not %+v", want, got)
				}
			},
			"": func(t *rapid.T) {
				size := 0
				for key, s := range a.slots {
					size += slotBytes + len(key) + len(s.state.Value)
				}
				if len(a.slots) > limits.Keys || size > limits.Bytes || size != a.bytes {
					t.Fatalf("%d slots of %d bytes, counted as %d", len(a.slots), size, a.bytes)
				}
			},
		})
	})
}

// TestAcceptorRefusesNonsense asks what no proposer asks.
func TestAcceptorRefusesNonsense(t *testing.T) {
	a := NewAcceptor(LimitsFor(3, 10))
	long := string(make([]byte, nameBytes+1))
	for _, q := range []*Question{
		nil, {}, {Kind: "?"}, {Kind: KindPrepare}, {Kind: KindPrepare, Ballot: Ballot{1, long}},
		{Kind: KindPrepare, Ballot: Ballot{counterMost + 1, "p"}}, {Kind: KindAccept, Ballot: Ballot{Proposer: "p"}},
		{Kind: KindAccept, Ballot: Ballot{1, "p"}, State: State{Writer: long}},
		{Kind: KindAccept, Ballot: Ballot{1, "p"}, State: State{Past: []string{long}}},
		{Kind: KindAccept, Ballot: Ballot{1, "p"}, State: State{Past: make([]string, mostPast+1)}},
	} {
		if answer := a.Answer(q); answer.Refusal == "" {
			t.Errorf("%+v is answered by %+v", q, answer)
		}
	}
	if len(a.slots) > 0 {
		t.Errorf("%d slots were made", len(a.slots))
	}
}

// FuzzQuestion has an acceptor answer whatever can be decoded.
func FuzzQuestion(f *testing.F) {
	f.Add([]byte(
		`{"kind":"accept","key":"view","ballot":{"counter":1,"proposer":"p"},"state":{"version":1,"value":"AAAA"}}`))
	f.Add([]byte(`{"kind":"peekall","key":"c","after":"client/"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		q := &Question{}
		if json.Unmarshal(text, q) != nil {
			return
		}
		a := NewAcceptor(Limits{Keys: 1, Key: 8, Value: 8, Bytes: slotBytes + 16})
		if answer := a.Answer(q); answer == nil || a.bytes > slotBytes+16 {
			t.Errorf("%s: %+v", text, answer)
		}
	})
}

// TestMerge: a list with changes is sorted, and the list before is as it was.
func TestMerge(t *testing.T) {
	entries := func(all ...string) (e []Entry) {
		for _, s := range all {
			e = append(e, Entry{Key: s[:1], State: State{Writer: s[1:]}})
		}
		return e
	}
	before := entries("b1", "d1")
	got := merge(before, entries("b2", "c0", "e1", "c1", "a1"))
	equal := func(x, y []Entry) bool {
		return slices.EqualFunc(x, y, func(x, y Entry) bool {
			return x.Key == y.Key && x.State.Writer == y.State.Writer
		})
	}
	if !equal(got, entries("a1", "b2", "c1", "d1", "e1")) || !equal(before, entries("b1", "d1")) {
		t.Errorf("%v, of %v", got, before)
	}
}

// TestLyingList: what a node says of a list may be anything. It is refused, and bounded.
func TestLyingList(t *testing.T) {
	q := &Question{Kind: KindPeekAll, Key: "c/"}
	for name, a := range map[string]*Answer{
		"nothing": nil, "of another prefix": {Mark: "m", Entries: []Entry{{Key: "d/1"}}},
		"more of nothing":                 {Mark: "m", More: true},
		"more behind the same":            {More: true, Entries: []Entry{{Key: "c/1"}}},
		"behind what was never asked for": {Since: "m", Mark: "m"},
	} {
		if got, err := relist(q, nil).take(a); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	l := relist(q, nil)
	for n := 0; ; n++ {
		page := make([]Entry, 1000)
		for i := range page {
			page[i].Key = fmt.Sprint("c/", n, i)
		}
		if _, err := l.take(&Answer{Since: l.mark, Mark: fmt.Sprint(n), More: true, Entries: page}); err != nil {
			break
		} else if n > 100 {
			t.Fatalf("a list of %d records is not refused", len(l.news))
		}
	}
}
