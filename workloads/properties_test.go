package workloads

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/pingcap/go-ycsb/pkg/util"
)

func TestDefaultsAreYCSBs(t *testing.T) {
	s, err := Parse(given{"recordcount": "10"})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintln(s.Table, s.FieldCount, s.FieldLength, s.ReadAllFields, s.WriteAllFields, s.Read, s.Update,
		s.Insert,
		s.Scan, s.ReadModifyWrite, s.RequestDistribution, s.MinScan, s.MaxScan, s.ScanLengthDistribution, s.KeyPrefix,
		s.Ordered, s.ZeroPadding, s.InsertCount, s.InsertionRetries, s.InsertionInterval, s.HotspotData, s.HotspotOps)
	want := "usertable 10 100 true false 0.95 0.05 0 0 0 uniform 1 1000 uniform user false 1 10 0 3s 0.2 0.8\n"
	if got != want {
		t.Errorf("defaults are\n%s, want\n%s", got, want)
	}
}

func TestMisuse(t *testing.T) {
	for _, c := range []struct{ props, want string }{
		{"", "recordcount is not set"},
		{"recordcount=0", "recordcount is not set"},
		{"recordcount=ten", "property recordcount=ten: want a number from 0"},
		{"recordcount=-1", "property recordcount=-1"},
		{"recordcount=10 insertstart=10", "do not fit into recordcount=10"},
		{"recordcount=10 insertstart=5 insertcount=6", "do not fit"},
		{"recordcount=10 readproportion=1.5", "property readproportion=1.5: want a number from 0 to 1"},
		{"recordcount=10 readproportion=NaN", "property readproportion=NaN"},
		{"recordcount=10 readproportion=0 updateproportion=0", "all proportions are 0"},
		{"recordcount=10 requestdistribution=zipf", "want one of uniform, zipfian, latest"},
		{"recordcount=10 fieldcount=0", "property fieldcount=0"},
		{"recordcount=10 fieldlength=0", "property fieldlength=0"},
		{"recordcount=10 fieldlength=10 minfieldlength=11", "minfieldlength=11 exceeds"},
		{"recordcount=10 maxscanlength=3 minscanlength=4", "minscanlength=4 exceeds"},
		{"recordcount=10 dataintegrity=maybe", "property dataintegrity=maybe: want true or false"},
		{"recordcount=10 dataintegrity=true fieldlengthdistribution=uniform", "dataintegrity=true needs"},
		{"recordcount=10 insertorder=up", "want one of hashed, ordered"},
		{"recordcount=10 zipfianconstant=1", "property zipfianconstant=1: want a number between 0 and 1"},
		{"recordcount=10 exponential.percentile=100", "property exponential.percentile=100"},
	} {
		p := given{}
		for _, kv := range strings.Fields(c.props) {
			name, value, _ := strings.Cut(kv, "=")
			p[name] = value
		}
		_, err := Parse(p)
		var use *UsageError
		if !errors.As(err, &use) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.props, err, c.want)
		}
	}
}

func TestKeysAreUpstreams(t *testing.T) {
	for _, n := range []int64{0, 1, 999, 123456789, 1<<40 - 1} {
		for _, padding := range []int{0, 1, 12, 30} {
			hashed := Spec{KeyPrefix: "user", ZeroPadding: padding}
			if got, want := string(hashed.Key(n)), fmt.Sprintf("user%0[2]*[1]d", util.Hash64(n), padding); got != want {
				t.Errorf("key of %d is %s, upstream's %s", n, got, want)
			}
			ordered := Spec{KeyPrefix: "k", ZeroPadding: padding, Ordered: true}
			if got, want := string(ordered.Key(n)), fmt.Sprintf("k%0[2]*[1]d", n, padding); got != want {
				t.Errorf("ordered key of %d is %s, upstream's %s", n, got, want)
			}
		}
	}
}

// TestExpectedValuesAreUpstreams builds values as upstream's core workload does.
func TestExpectedValuesAreUpstreams(t *testing.T) {
	for _, n := range []int{1, 5, 12, 13, 100, 1001} {
		b := []byte("user42:field7")
		for len(b) < n {
			b = append(b, ':')
			b = strconv.AppendUint(b, uint64(util.BytesHash64(b)), 10)
		}
		if got := appendExpected([]byte("before"), []byte("user42"), 7, n); string(got) != "before"+string(b[:n]) {
			t.Errorf("value of %d bytes is %s, upstream's %s", n, got[6:], b[:n])
		}
	}
}

func TestRandomValuesArePrintableAndDiffer(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(1000) {
		b := make([]byte, 13)
		fillRandom(b, seed)
		if bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' || r > '_' }) || seen[string(b)] {
			t.Fatalf("value %q", b)
		}
		seen[string(b)] = true
	}
}

func TestSizes(t *testing.T) {
	s, err := Parse(given{"recordcount": "100000", "fieldcount": "1", "fieldlength": "1001", "zeropadding": "19",
		"operationcount": "1000", "insertproportion": "0.05", "readproportion": "0.95", "updateproportion": "0"})
	if err != nil {
		t.Fatal(err)
	}
	if s.PairBytes() != 1024 || s.ExpectedInserts() != 100 {
		t.Errorf("pairs of %d bytes, %d inserts expected", s.PairBytes(), s.ExpectedInserts())
	}
	inserts := given{"recordcount": "990", "fieldcount": "1", "operationcount": "1000", "insertproportion": "0.05",
		"readproportion": "0.95", "updateproportion": "0", "insertorder": "ordered"}
	if s, err = Parse(inserts); err != nil || s.PairBytes() != len("user1090")+100 {
		t.Errorf("pairs of %d bytes with the keys of inserts, %v", s.PairBytes(), err)
	}
	inserts["table"] = "other"
	if s, err = Parse(inserts); err != nil || s.PairBytes() != len("other/user1090")+100 {
		t.Errorf("pairs of %d bytes of another table, %v", s.PairBytes(), err)
	}
}
