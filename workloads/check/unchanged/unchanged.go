// Package unchanged compares the numbers of runs in virtual time with those that the same runs had before: a change that
// is to move code, and nothing else, leaves every number as it was.
package unchanged

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/rdma/sim"
)

// Remake is the environment variable that makes Compare write its file anew.
const Remake = "FARKV_REMAKE"

// Renamed are keys that were renamed since the files were made: from the name in the file to that of today.
var Renamed = map[string]string{}

// Numbers are a run's, by their paths.
type Numbers map[string]json.Number

// Runs are the numbers of runs, by the runs' names.
type Runs map[string]Numbers

// fold is the length from which on a list of numbers is one number in the file: its hash.
const fold = 9

// Add adds all numbers that v has as JSON, under a path. Texts are dropped; the elements of a list go by their names where
// they have some, or by their indices.
func (n Numbers) Add(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return err
	}
	n.add(path, tree)
	return nil
}

func (n Numbers) add(path string, v any) {
	switch v := v.(type) {
	case json.Number:
		n[path] = v
	case map[string]any:
		for key, e := range v {
			n.add(strings.TrimPrefix(path+"."+key, "."), e)
		}
	case []any:
		own := Numbers{}
		for i, e := range v {
			label := fmt.Sprint(i)
			if m, ok := e.(map[string]any); ok {
				if name, ok := m["name"].(string); ok {
					label = name
				}
			}
			own.add(path+"["+label+"]", e)
		}
		if _, objects := first(v).(map[string]any); !objects && len(own) >= fold {
			own = Numbers{path + "[hash]": own.hash()}
		}
		maps.Copy(n, own)
	}
}

func first(list []any) any {
	if len(list) == 0 {
		return nil
	}
	return list[0]
}

func (n Numbers) hash() json.Number {
	h := fnv.New64a()
	for _, path := range slices.Sorted(maps.Keys(n)) {
		fmt.Fprintf(h, "%s %s\n", path, n[path])
	}
	return json.Number(fmt.Sprint(h.Sum64()))
}

// Verbs returns a function that takes a simulation's events, and one that adds to n how many verbs and calls were posted,
// and a hash of their sequence: each one's kind, node, offset and length, and a call's procedure.
func (n Numbers) Verbs() (trace func(sim.Event), add func()) {
	h, count := fnv.New64a(), 0
	var b []byte
	trace = func(e sim.Event) {
		if e.Kind != sim.Post && e.Kind != sim.Call {
			return
		}
		count++
		b = append(b[:0], byte(e.Kind), byte(e.Verb))
		b = binary.LittleEndian.AppendUint64(b, uint64(e.Addr.Node()))
		b = binary.LittleEndian.AppendUint64(b, e.Addr.Offset())
		b = binary.LittleEndian.AppendUint64(b, uint64(e.Len))
		if e.Kind == sim.Call {
			b = binary.LittleEndian.AppendUint64(b, e.Value)
		}
		h.Write(b)
	}
	return trace, func() {
		n["verbs.posted"] = json.Number(fmt.Sprint(count))
		n["verbs.hash"] = json.Number(fmt.Sprint(h.Sum64()))
	}
}

// most differences of one run are printed.
const most = 12

// Compare compares runs with those of a file below testdata, or with Remake in the environment writes the file.
func Compare(t *testing.T, name string, is Runs) {
	t.Helper()
	file := filepath.Join("testdata", "unchanged", name+".json")
	if os.Getenv(Remake) != "" {
		if err := is.write(file); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(file)
	was := Runs{}
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s: %v", file, err)
	}
	if report := was.differences(is); report != "" {
		t.Errorf("%s: numbers changed; if they are to, %s=1 writes the file anew:\n%s", file, Remake, report)
	}
}

// write writes a line a number, sorted.
func (r Runs) write(file string) error {
	text, err := json.MarshalIndent(r, "", "")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// differences lists what is not in is as it was: path, was, is.
func (r Runs) differences(is Runs) string {
	var t strings.Builder
	for _, run := range both(r, is) {
		was, now := Numbers{}, is[run]
		for path, v := range r[run] {
			was[rename(path)] = v
		}
		var lines []string
		for _, path := range both(was, now) {
			if was[path] != now[path] {
				lines = append(lines, fmt.Sprintf("  %-50s was %-22s is %s\n", path, orNone(was[path]), orNone(now[path])))
			}
		}
		if len(lines) == 0 {
			continue
		}
		fmt.Fprintf(&t, "%s: %d of %d numbers\n%s", run, len(lines), len(was), strings.Join(lines[:min(len(lines), most)], ""))
		if len(lines) > most {
			fmt.Fprintf(&t, "  and %d more\n", len(lines)-most)
		}
	}
	return t.String()
}

// both returns the keys of two maps, sorted.
func both[V any](a, b map[string]V) []string {
	all := maps.Clone(a)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, b)
	return slices.Sorted(maps.Keys(all))
}

func rename(path string) string {
	keys := strings.Split(path, ".")
	for i, key := range keys {
		key, index, _ := strings.Cut(key, "[")
		if to, ok := Renamed[key]; ok {
			keys[i] = to
			if index != "" {
				keys[i] += "[" + index
			}
		}
	}
	return strings.Join(keys, ".")
}

func orNone(n json.Number) string {
	if n == "" {
		return "absent"
	}
	return n.String()
}
