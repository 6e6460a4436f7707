package pmem

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// standIn is an executable that answers as ipmctl does.
func standIn(t *testing.T, script string) *IPMCTL {
	t.Helper()
	name := filepath.Join(t.TempDir(), "ipmctl")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return &IPMCTL{Program: name}
}

// prints is a script that prints a text.
func prints(text string) string { return "cat <<'END'\n" + text + "\nEND\n" }

func element(id string, counters ...string) string {
	text := "<DimmPerformance>\n<DimmID>" + id + "</DimmID>\n"
	for i, name := range []string{"MediaReads", "MediaWrites", "ReadRequests", "WriteRequests", "TotalMediaReads",
		"TotalMediaWrites",
		"TotalReadRequests", "TotalWriteRequests"} {
		if i < len(counters) {
			text += fmt.Sprintf("<%s>%s</%[1]s>\n", name, counters[i])
		}
	}
	return text + "</DimmPerformance>\n"
}

func list(elements ...string) string {
	return `<?xml version="1.0"?>` + "\n<DimmPerformanceList>\n" + strings.Join(elements, "") + "</DimmPerformanceList>"
}

func hex(n uint64) string { return fmt.Sprintf("0x%032x", n) }

func TestRead(t *testing.T) {
	want := []DIMM{
		{ID: "0x0001", MediaReads: 3426766852, MediaWrites: 2, ReadRequests: 3, WriteRequests: 4, TotalMediaReads: 5,
			TotalMediaWrites: 6, TotalReadRequests: 7, TotalWriteRequests: 8},
		{ID: "0x0101", MediaWrites: 1<<64 - 1},
	}
	one := element("0x0001", hex(3426766852), hex(2), hex(3), hex(4), hex(5), hex(6), hex(7), hex(8))
	text := `
---DimmID=0x0001---
   MediaReads=0x000000000000000000000000cc405004
   MediaWrites=0x2
   ReadRequests=0x3
   WriteRequests=0x4
   TotalMediaReads=0x5
   TotalMediaWrites=0x6
   TotalReadRequest=0x7
   TotalWriteRequest=0x8
---DimmID=0x0101---
   MediaReads=0x0
   MediaWrites=0x0000000000000000ffffffffffffffff`
	for name, script := range map[string]string{
		"nvmxml":          prints(list(one, element("0x0101", hex(0), hex(1<<64-1)))),
		"text":            prints(text),
		"as it was asked": `test "$*" = "show -o nvmxml -performance" || exit 201` + "\n" + prints(text),
	} {
		if got, err := standIn(t, script).Read(t.Context()); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestReadFails(t *testing.T) {
	for name, c := range map[string]struct {
		tool *IPMCTL
		want error
		says string
	}{
		"no tool": {&IPMCTL{Program: "ipmctl-that-there-is-not"}, ErrNoTool, ""},
		"no modules": {standIn(t, "echo 'Initialization failed. No PMem modules in the system.'; exit 1"),
			ErrNoModules, ""},
		"no permission": {standIn(t, "echo 'Error: insufficient permissions. This command requires root.'; exit 4"),
			ErrPermission, ""},
		"not executable": {func() *IPMCTL {
			c := standIn(t, "")
			if err := os.Chmod(c.Program, 0o600); err != nil {
				t.Fatal(err)
			}
			return c
		}(), ErrPermission, ""},
		"hangs": {func() *IPMCTL {
			c := standIn(t, "exec sleep 60")
			c.Timeout = 50 * time.Millisecond
			return c
		}(), ErrTimeout, "within 50ms"},
		"broken XML": {standIn(t, prints("<DimmPerformanceList><DimmID>0x1")), ErrFormat, ""},
		"no module":  {standIn(t, prints(list())), ErrFormat, "names no module"},
		"nothing":    {standIn(t, ""), ErrFormat, ""},
		"129 bits": {standIn(t, prints(list(element("0x1", "0x"+strings.Repeat("f", 32))))), ErrFormat,
			"module 0x1: MediaReads"},
		"no number": {standIn(t, prints("---DimmID=0x1---\nMediaReads=many")), ErrFormat,
			`MediaReads is "many"`},
		"a long name":      {standIn(t, prints("---DimmID="+strings.Repeat("x", 100)+"---")), ErrFormat, ""},
		"too many modules": {standIn(t, prints(strings.Repeat("---DimmID=0x1---\n", maxModules+1))), ErrFormat, ""},
		"another failure": {standIn(t, "printf 'some\\033[2Jthing\\nbroke'; exit 7"), nil,
			"exit status 7: some [2Jthing broke"},
		"endless": {standIn(t, "exec yes"), nil, ""},
	} {
		all, err := c.tool.Read(t.Context())
		if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, %v", name, all, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := standIn(t, prints(list(element("0x1")))).Read(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(list(element("0x0001", hex(1), hex(2)))))
	f.Add([]byte("---DimmID=0x0001---\nMediaReads=0x1\n"))
	f.Fuzz(func(t *testing.T, p []byte) {
		all, err := parse(p)
		if (err == nil) != (len(all) > 0) || err != nil && !errors.Is(err, ErrFormat) || len(all) > maxModules {
			t.Fatalf("%d modules, %v", len(all), err)
		}
		for _, d := range all {
			if strings.ContainsFunc(d.ID, func(r rune) bool { return r < ' ' }) {
				t.Fatalf("control characters in %q", d.ID)
			}
		}
	})
}

func TestRates(t *testing.T) {
	before := []DIMM{{ID: "a", MediaReads: 10, MediaWrites: 100, ReadRequests: 20, WriteRequests: 50},
		{ID: "b", MediaReads: 9}, {ID: "c"}}
	after := []DIMM{{ID: "a", MediaReads: 30, MediaWrites: 500, ReadRequests: 60, WriteRequests: 250}, {ID: "b"},
		{ID: "d"}}
	want := []Rate{
		{ID: "a", MediaRead: 640, MediaWritten: 12800, RequestRead: 1280, RequestWrote: 6400, DLWA: 2},
		{ID: "b", Problem: "its counters were reset"}, {ID: "d", Problem: "the module is new"}, {ID: "c",
			Problem: "the module is gone"},
	}
	if got := Rates(before, after, 2*time.Second); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	if idle := Rates(after[:1], after[:1], time.Second); idle[0].DLWA != 0 || idle[0].Problem != "" {
		t.Errorf("idle: %+v", idle)
	}
}
