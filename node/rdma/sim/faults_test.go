package sim_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

func TestBadFaultsEndTheRun(t *testing.T) {
	s := open(t, sim.Options{Nodes: 2, Faults: sim.Faults{{Kind: sim.CrashFault, Node: 2, Verb: 1}}})
	s.Go("client", func(ep rdma.Endpoint) { t.Error("it began") })
	if err := s.Run(); err == nil || !strings.Contains(err.Error(), "fault 1: crash node=2 verb=1: the pool has "+
		"nodes 0 to 1") {
		t.Errorf("error is %v", err)
	}
}

func TestParseFaultsSaysWhatIsWrong(t *testing.T) {
	for line, want := range map[string]string{
		"explode client=a":                               `"explode" is none of crash, slow`,
		"crash client=a verb=1; crash":                   "",
		"crash client=a rack=b":                          "rack=b: is none of client, node",
		"crash client=a verb":                            `"verb" is no key=value`,
		"crash client=a verb=x":                          `verb=x: strconv`,
		"stall client=a verb=3":                          "for how long?",
		"stall verb=3 for=1ms":                           "which client?",
		"slow client=a node=1 factor=2 for=1s":           "only nodes are slow",
		"slow node=1 factor=-2 for=1s":                   "has a factor",
		"slow node=1 for=1s":                             "has a factor",
		"slow node=1 factor=NaN for=1s":                  "has a factor",
		"partition client=a node=1 verb=1 for=1s":        "not at a verb",
		"power node=1 verb=1 for=1s":                     "not at a verb",
		"power node=1 at=1s":                             "for how long?",
		"restart client=a at=1s for=1s":                  "only nodes come back",
		"crash client=a verb=1 at=1s":                    "needs a verb, or a time",
		"crash client=a at=-1s":                          "needs a verb, or a time",
		"crash node=*":                                   "the pool has nodes",
		"crash client=a node=1":                          "is not about a node",
		"step client=a":                                  "goes by some time",
		"crash client=a by=1s":                           "goes by some time",
		`crash client="a`:                                "invalid syntax",
		"crash client=a at=1ms for=1ms":                  "for how long?",
		"crash client=a verb=1; ; crash client=b verb=1": `fault 2: "" is none of`,
	} {
		_, err := sim.ParseFaults(line)
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", line, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want %q in it", line, err, want)
		}
	}
}

// FuzzFaults reads what it wrote, and gets what it had.
func FuzzFaults(f *testing.F) {
	f.Add(
		`crash client="client 1" verb=7; slow node=* factor=1.5 at=2ms for=1ms; ` +
			`partition client=* node=1 at=1ms for=300µs`)
	f.Add(
		`stall client=#3 verb=9 for=1h; fly client="a;b \"c\"" verb=1 for=1ns; ` +
			`late client=x at=3s for=1s; step client=x at=0s by=-2ms`)
	f.Add("power node=* at=1ms for=300µs; restart node=2 at=0s for=1ns")
	f.Add("crash node=0 verb=18446744073709551615;")
	f.Fuzz(func(t *testing.T, line string) {
		l, err := sim.ParseFaults(line)
		if err != nil {
			return
		}
		text := l.String()
		if strings.ContainsAny(text, "\n\r") {
			t.Errorf("%q has several lines", text)
		}
		again, err := sim.ParseFaults(text)
		if err != nil || fmt.Sprintf("%#v", again) != fmt.Sprintf("%#v", l) {
			t.Errorf("%q becomes %#v, then %q, then %#v (%v)", line, l, text, again, err)
		}
	})
}
