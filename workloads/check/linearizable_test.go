package check

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// script reads a history: "WORKER CALL-RETURN KIND [VALUE] ANSWER", one operation a line, all on
// one key; RETURN may be a dot.
func script(t *testing.T, text string) History {
	t.Helper()
	var h History
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		op := Op{Key: []byte("k"), Seq: len(h), Return: Never}
		var call, ret int
		fmt.Sscanf(f[0], "w%d", &op.Worker)
		from, to, _ := strings.Cut(f[1], "-")
		fmt.Sscanf(from, "%d", &call)
		op.Call = time.Duration(call)
		if n, _ := fmt.Sscanf(to, "%d", &ret); n == 1 {
			op.Return = time.Duration(ret)
		}
		op.Kind = Kind(indexOf(t, kindNames[:], f[2]))
		rest := f[3:]
		if strings.HasPrefix(rest[len(rest)-1], "v") {
			rest = append([]string{rest[len(rest)-1]}, rest[:len(rest)-1]...)
		}
		if strings.HasPrefix(rest[0], "v") {
			var v int
			fmt.Sscanf(rest[0], "v%d", &v)
			op.Value = Identify(MakeValue(nil, 7, v, 20))
			rest = rest[1:]
		}
		op.Answer = Answer(indexOf(t, answerNames[:], strings.Join(rest, " ")))
		h = append(h, op)
	}
	return h
}

func indexOf(t *testing.T, names []string, name string) int {
	t.Helper()
	for i, n := range names {
		if n == name {
			return i
		}
	}
	t.Fatalf("no %q among %q", name, names)
	return 0
}

var histories = []struct {
	name, text string
	right      bool
}{
	{"empty", ``, true},
	{"sequential", `
		w0 0-1 get not found
		w0 2-3 insert v1 ok
		w0 4-5 insert v2 exists
		w0 6-7 update v3 ok
		w0 8-9 get ok v3
		w0 10-11 delete ok
		w0 12-13 delete not found
		w0 14-15 update v4 not found
		w0 16-17 get not found`, true},
	{"read during the write may be old or new", `
		w0 0-1 insert v1 ok
		w0 10-20 update v2 ok
		w1 11-12 get ok v1
		w2 13-14 get ok v2`, true},
	{"new then old", `
		w0 0-1 insert v1 ok
		w0 10-20 update v2 ok
		w1 11-12 get ok v2
		w2 13-14 get ok v1`, false},
	{"stale read", `
		w0 0-1 insert v1 ok
		w0 2-3 update v2 ok
		w1 4-5 get ok v1`, false},
	{"lost update", `
		w0 0-1 insert v1 ok
		w0 2-3 update v2 ok
		w1 2-3 update v3 ok
		w0 4-5 get ok v2
		w1 6-7 get ok v3`, false},
	{"two inserts say yes", `
		w0 0-9 insert v1 ok
		w1 0-9 insert v2 ok`, false},
	{"two inserts say yes with a delete between", `
		w0 0-9 insert v1 ok
		w1 0-9 insert v2 ok
		w2 0-9 delete ok`, true},
	{"two deletes say yes", `
		w0 0-1 insert v1 ok
		w1 2-9 delete ok
		w2 2-9 delete ok`, false},
	{"resurrection", `
		w0 0-1 insert v1 ok
		w0 2-3 delete ok
		w1 4-5 get ok v1`, false},
	{"update of nothing says yes", `
		w0 0-1 update v1 ok`, false},
	{"a miss although it is there", `
		w0 0-1 insert v1 ok
		w1 2-3 get not found`, false},
	{"exists although it is not", `
		w0 0-1 insert v1 exists`, false},
	{"a value that no operation wrote", `
		w0 0-1 insert v1 ok
		w1 2-3 get ok v9`, false},
	{"uncertain insert seen later", `
		w0 0-5 insert v1 uncertain
		w1 6-7 get not found
		w1 8-9 get ok v1`, true},
	{"uncertain insert never seen", `
		w0 0-5 insert v1 uncertain
		w1 6-7 get not found
		w1 8-9 insert v2 ok
		w1 10-11 get ok v2`, true},
	{"uncertain insert lands once", `
		w0 0-5 insert v1 uncertain
		w1 6-7 get ok v1
		w1 8-9 delete ok
		w1 10-11 get ok v1`, false},
	{"uncertain update flip-flops", `
		w0 0-1 insert v1 ok
		w0 2-3 update v2 uncertain
		w1 4-5 get ok v2
		w1 6-7 get ok v1`, false},
	{"uncertain update overtakes a later one", `
		w0 0-1 insert v1 ok
		w0 2-3 update v2 uncertain
		w1 4-5 update v3 ok
		w1 6-7 get ok v3
		w1 8-9 get ok v2`, true},
	{"uncertain delete", `
		w0 0-1 insert v1 ok
		w0 2-3 delete uncertain
		w1 4-5 get ok v1
		w1 6-7 insert v2 ok
		w1 8-9 get ok v2`, true},
	{"uncertain delete works once", `
		w0 0-1 insert v1 ok
		w0 2-3 delete uncertain
		w1 4-5 get not found
		w1 6-7 insert v2 ok
		w1 8-9 get ok v2
		w1 10-11 get not found`, false},
	{"seen before it was called", `
		w1 0-1 get ok v1
		w0 2-. insert v1 not returned`, false},
	{"a dead client's insert", `
		w0 0-. insert v1 not returned
		w1 5-6 insert v2 exists
		w1 7-8 get ok v1`, true},
	{"a failed write is a write", `
		w0 0-1 insert v1 failed
		w1 2-3 get ok v1`, true},
	{"what was refused did not happen", `
		w0 0-1 insert v1 refused
		w1 2-3 get ok v1`, false},
	{"what timed out without a doubt did not happen", `
		w0 0-1 insert v1 timed out
		w1 2-3 get ok v1`, false},
	{"a read of unknown outcome says nothing", `
		w0 0-1 insert v1 ok
		w1 2-3 get uncertain
		w1 4-. get not returned`, true},
}

func TestHistories(t *testing.T) {
	for _, tt := range histories {
		t.Run(tt.name, func(t *testing.T) {
			// A refused write never happened: a history in which its value is read is wrong.
			err := Linearizable(script(t, tt.text), Options{})
			var v *Violation
			switch {
			case tt.right && err != nil:
				t.Fatal(err)
			case !tt.right && !errors.As(err, &v):
				t.Fatalf("the checker let it pass: %v", err)
			}
		})
	}
}

// Keys are independent of each other, and a bad one is found among good ones.
func TestKeys(t *testing.T) {
	var h History
	for i, tt := range histories {
		for _, op := range script(t, tt.text) {
			if tt.right {
				op.Key = fmt.Appendf(nil, "key-%d", i)
				h = append(h, op)
			}
		}
	}
	if err := Linearizable(h, Options{}); err != nil {
		t.Fatal(err)
	}
	bad := script(t, "w0 0-1 insert v1 ok\nw1 2-3 insert v1 ok")
	var v *Violation
	if err := Linearizable(append(h, bad...), Options{}); !errors.As(err, &v) || string(v.Key) != "k" {
		t.Fatalf("got %v", err)
	}
}

func TestSlack(t *testing.T) {
	h := script(t, `
		w0 0-10 insert v1 ok
		w0 20-30 update v2 ok
		w1 33-40 get ok v1`)
	if err := Linearizable(h, Options{Slack: 1}); err == nil {
		t.Fatal("clocks that differ by 1 do not explain a gap of 3")
	}
	if err := Linearizable(h, Options{Slack: 2}); err != nil {
		t.Fatalf("clocks that differ by 2 explain a gap of 3: %v", err)
	}
}

// The report is small even when the history is not, names the culprit, and stands for itself.
func TestReport(t *testing.T) {
	var b strings.Builder
	b.WriteString("w0 0-1 insert v1 ok\n")
	at := 2
	for i := 2; i < 300; i++ {
		fmt.Fprintf(&b, "w0 %d-%d update v%d ok\n", at, at+3, i)
		fmt.Fprintf(&b, "w1 %d-%d get ok v%d\n", at+1, at+2, i-i%2)
		fmt.Fprintf(&b, "w2 %d-%d insert v%d exists\n", at+1, at+2, 1000+i)
		at += 4
		if i == 200 {
			fmt.Fprintf(&b, "w3 %d-%d get ok v150\n", at, at+1)
			at += 2
		}
	}
	err := Linearizable(script(t, b.String()), Options{})
	var v *Violation
	if !errors.As(err, &v) {
		t.Fatalf("got %v", err)
	}
	if v.Culprit.Worker != 3 || len(v.Ops) > 2 {
		t.Errorf("want the stale read of w3 and the update before it, got\n%v", err)
	}
	if text := err.Error(); !strings.Contains(text, `w3 get "k" -> ok w7.150`) || strings.Count(text, ">  ") != 1 {
		t.Errorf("report:\n%s", text)
	}
	again := History{}
	for _, op := range v.Ops {
		again = append(again, *op)
	}
	again = append(History{{Key: v.Key, Kind: Insert, Value: v.Culprit.Value, Call: -10, Return: -9}}, again...)
	if Linearizable(again, Options{}) == nil {
		t.Error("what was reported is no contradiction by itself")
	}
}

func TestUndecided(t *testing.T) {
	h := script(t, "w0 0-1 insert v1 ok")
	if err := Linearizable(h, Options{Timeout: 1}); !errors.Is(err, ErrUndecided) {
		t.Fatalf("got %v", err)
	}
}
