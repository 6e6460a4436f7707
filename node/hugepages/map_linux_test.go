package hugepages

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Where too few pages are free the log has what to set, if there are huge pages at all.
func TestMapTooFew(t *testing.T) {
	const size = 1 << 46 // more than there is anywhere
	for total, want := range map[uint64]string{
		0: "",
		8: `"needed huge pages"=33554432 free=3 "bytes of each"=2097152 error="cannot allocate memory" ` +
			`set="sysctl vm.nr_hugepages=33554437"`,
	} {
		var out bytes.Buffer
		m := Pool{Size: 2 << 20, Total: total, Free: min(total, 3)}.Map(size, slog.New(slog.NewTextHandler(&out, nil)))
		if got := out.String(); m != nil || !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("of %d pages: %d bytes are mapped, log %q; want %q", total, len(m), got, want)
		}
	}
}

// A mapping has whole pages of the kernel's default size, so that it can be unmapped.
func TestMap(t *testing.T) {
	p := Read(os.DirFS("/"))
	if p.Free < 2 {
		t.Skip("this machine has no huge pages free")
	}
	m := p.Map(p.Size+1, slog.New(slog.DiscardHandler))
	if uint64(len(m)) != 2*p.Size || m[p.Size] != 0 {
		t.Fatalf("%d bytes", len(m))
	}
	if err := unix.Munmap(m); err != nil {
		t.Error(err)
	}
}
