package explore

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// everything is a subject that has all that a plan can contain.
func everything() *Subject {
	s := toySubject("")
	s.Replicas = [][2]int{{1, 1}, {2, 2}, {3, 2}, {5, 5}}
	s.Levels, s.Durable, s.Wide, s.Large = 3, true, 7, 16000
	return s
}

func TestLines(t *testing.T) {
	kinds := map[string]bool{}
	wide, large := 0, 0
	for seed := range uint64(2000) {
		p := everything().Draw(seed, Limits{})
		longest := 0
		for _, ops := range p.Work {
			for _, op := range ops {
				if op.writes() {
					longest = max(longest, op.Size)
				}
			}
		}
		if p.Index == 7 && p.Data == 7 {
			wide++
		}
		if longest > 8000 {
			large++
		}
		if usual := everything().MaxValue; p.Value == 0 && longest > usual || longest > 16000 {
			t.Errorf("values of %d bytes in a pool for %d", longest, max(p.Value, usual))
		}
		line := p.String()
		q, err := Parse(line)
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Fatalf("%v\n%#v\n%#v\n%s", err, p, q, line)
		}
		if strings.ContainsAny(line, "\n'") {
			t.Fatalf("cannot be quoted: %s", line)
		}
		for _, f := range p.Faults {
			kinds[f.Kind.String()+strings.TrimRight(f.Client, "0123456789")] = true
		}
	}
	if wide < 50 || large < 50 {
		t.Errorf("of 2000 plans %d have seven replicas, and %d long values", wide, large)
	}
	for _, want := range []string{"crash", "crashworker-", "crashkeeper-", "slow", "stallworker-", "partitionworker-",
		"flyworker-", "lateworker-", "stepworker-", "power", "restart"} {
		if !kinds[want] {
			t.Errorf("no plan has a fault %s", want)
		}
	}
}

func TestBadLines(t *testing.T) {
	for line, want := range map[string]string{
		"seed=x":                          "seed=x",
		"nodes=0":                         "want 1 to 16",
		"index=2":                         "2 index and 1 data replicas on 1 nodes",
		"levels=17":                       "want 0 to 16",
		"value=70000":                     "want 0 to 65536",
		"spares=1":                        "on 1 nodes with 1 spares",
		"net=2µs":                         "net=2µs",
		"net=2µs-1µs":                     "want the least latency",
		"net=1µs-2µs,torn":                "want tear or reorder",
		"fly=0,1µs":                       "want a share",
		"fly=0.1,0s":                      "late by no time",
		"cache=on":                        "takes no value",
		"pause=1h":                        "want a time up to 10s",
		"work=x0":                         "want a letter of giud",
		"work=g0:1":                       "has a size",
		"work=u0":                         "has a size",
		"work=g99":                        "want 0 to 63",
		"work=g0,,g0":                     "want a letter",
		"work=" + strings.Repeat("/", 40): "want up to 32",
		"seed=1 seed=2":                   "there twice",
		"colour=red":                      "no such field",
		"faults=crash node=7 verb=1":      "nodes 0 to 0",
		"faults=power node=1 at=1µs":      "for how long",
		"faults=power node=1 for=1µs":     "nodes 0 to 0",
	} {
		if p, err := Parse(line); !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %q", line, p, err, want)
		}
	}
}

// FuzzPlan: what is read is written so that it is read again.
func FuzzPlan(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(everything().Draw(seed, Limits{}).String())
	}
	f.Fuzz(func(t *testing.T, line string) {
		p, err := Parse(line)
		if err != nil {
			if !errors.Is(err, ErrPlan) {
				t.Fatal(err)
			}
			return
		}
		q, err := Parse(p.String())
		if err != nil || p.String() != q.String() || !reflect.DeepEqual(p.Work, q.Work) {
			t.Fatalf("%v\n%s\n%s", err, p, q)
		}
	})
}
