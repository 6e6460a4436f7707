package pmem

import (
	"bytes"
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DIMM holds the counters of one persistent-memory module since it was powered on. Media counts are
// of 64 bytes.
type DIMM struct {
	ID            string `json:"id"`
	MediaReads    uint64 `json:"media_reads"`
	MediaWrites   uint64 `json:"media_writes"`
	ReadRequests  uint64 `json:"read_requests"`
	WriteRequests uint64 `json:"write_requests"`
	// The Total counts are over the module's lifetime.
	TotalMediaReads    uint64 `json:"total_media_reads"`
	TotalMediaWrites   uint64 `json:"total_media_writes"`
	TotalReadRequests  uint64 `json:"total_read_requests"`
	TotalWriteRequests uint64 `json:"total_write_requests"`
}

// What callers branch on.
var (
	// ErrNoTool is wrapped when there is no ipmctl, which reads the counters.
	ErrNoTool = errors.New("ipmctl is not installed")
	// ErrNoModules is wrapped when the machine has no persistent-memory modules.
	ErrNoModules = errors.New("this machine has no persistent-memory modules")
	// ErrPermission is wrapped when this user may not read the counters.
	ErrPermission = errors.New("ipmctl needs root's permissions")
	// ErrTimeout is wrapped when ipmctl hangs.
	ErrTimeout = errors.New("ipmctl does not answer")
	// ErrFormat is wrapped when it answers in a way that this program does not understand.
	ErrFormat = errors.New("ipmctl's answer is not understood")
)

// IPMCTL reads the counters of this machine's modules through the command ipmctl. The zero value is
// ready for use.
type IPMCTL struct {
	Program string        // default ipmctl, on the PATH
	Timeout time.Duration // default 10 s: it takes about one with twelve modules
}

const (
	defaultTimeout = 10 * time.Second
	killDelay      = time.Second // that a killed ipmctl's children may hold its output open
	maxOutput      = 1 << 20     // a module takes 1 KiB
	maxModules     = 256         // a machine has up to 48
	maxID          = 64          // bytes of a module's name
)

// Read returns the counters of all modules, as ipmctl lists them. Errors wrap one of this
// package's, or what ipmctl said.
func (c *IPMCTL) Read(ctx context.Context) ([]DIMM, error) {
	const what = "read ipmctl's counters"
	timeout := cmp.Or(c.Timeout, defaultTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, ErrTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, cmp.Or(c.Program, "ipmctl"), "show", "-o", "nvmxml", "-performance")
	cmd.WaitDelay = killDelay
	out, failed := &bounded{most: maxOutput}, &bounded{most: 1 << 10}
	cmd.Stdout, cmd.Stderr = out, failed
	err := cmd.Run()
	said := bytes.TrimSpace(slices.Concat(out.kept, failed.kept))
	switch {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrTimeout):
		return nil, fmt.Errorf("%s: %w within %v", what, ErrTimeout, timeout)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", what, ctx.Err())
	case errors.Is(err, exec.ErrNotFound):
		return nil, fmt.Errorf("%s: %w", what, ErrNoTool)
	case errors.Is(err, fs.ErrPermission) || err != nil && mentions(said, "permission", "privilege", "root"):
		return nil, fmt.Errorf("%s: %w", what, ErrPermission)
	case mentions(said, "no pmem modules", "no dimms"):
		return nil, fmt.Errorf("%s: %w", what, ErrNoModules)
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %s", what, err, line(said))
	}
	all, err := parse(out.kept)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return all, nil
}

// mentions reports whether a text has one of some words, in small letters.
func mentions(said []byte, words ...string) bool {
	text := strings.ToLower(string(said))
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// line makes a line of what a program said, without control characters.
func line(said []byte) string {
	const most = 200
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(said[:min(len(said), most)]), "?"))
	return strings.Join(strings.Fields(text), " ")
}

// bounded keeps the beginning of what is written. It does not embed a bytes.Buffer, since that
// one's ReadFrom has no bound.
type bounded struct {
	kept []byte
	most int
}

// Write implements io.Writer. It fails where there is more, so that a program that never ends is
// ended.
func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.most-len(b.kept))
	b.kept = append(b.kept, p[:n]...)
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// parse reads what 'ipmctl show -o nvmxml -performance' prints: a list of elements, one a module,
// with an element for each counter. An older ipmctl prints text in spite of -o: blocks of
// "---DimmID=0x0001---" and "Key=value".
func parse(p []byte) ([]DIMM, error) {
	var all []DIMM
	var now *DIMM
	set := func(key, value string) error {
		if strings.EqualFold(key, "DimmID") {
			if len(all) == maxModules || len(value) > maxID {
				return fmt.Errorf("%w: more than %d modules, or a name of %d bytes", ErrFormat, maxModules, len(value))
			}
			all = append(all, DIMM{ID: line([]byte(value))})
			now = &all[len(all)-1]
			return nil
		}
		if now == nil {
			return nil
		}
		return setCounter(now, key, value)
	}
	read := readText
	if bytes.HasPrefix(bytes.TrimSpace(p), []byte("<")) {
		read = readXML
	}
	if err := read(p, set); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: it names no module: %s", ErrFormat, line(p))
	}
	return all, nil
}

// setCounter sets one of a module's counters, which are hexadecimal numbers of 128 bits. Others are
// left out.
func setCounter(d *DIMM, key, value string) error {
	var to *uint64
	switch strings.ToLower(key) {
	case "mediareads":
		to = &d.MediaReads
	case "mediawrites":
		to = &d.MediaWrites
	case "readrequests":
		to = &d.ReadRequests
	case "writerequests":
		to = &d.WriteRequests
	case "totalmediareads":
		to = &d.TotalMediaReads
	case "totalmediawrites":
		to = &d.TotalMediaWrites
	case "totalreadrequest", "totalreadrequests": // the manual spells it both ways
		to = &d.TotalReadRequests
	case "totalwriterequest", "totalwriterequests":
		to = &d.TotalWriteRequests
	default:
		return nil
	}
	digits, hex := strings.CutPrefix(strings.TrimSpace(value), "0x")
	base := 10
	if hex {
		base = 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	if err != nil {
		return fmt.Errorf("%w: module %s: %s is %q", ErrFormat, d.ID, line([]byte(key)), line([]byte(value)))
	}
	*to = n
	return nil
}

func readText(p []byte, set func(key, value string) error) error {
	for l := range strings.Lines(string(p)) {
		key, value, ok := strings.Cut(strings.Trim(l, "- \t\r\n"), "=")
		if !ok {
			continue
		}
		if err := set(key, value); err != nil {
			return err
		}
	}
	return nil
}

func readXML(p []byte, set func(key, value string) error) error {
	d := xml.NewDecoder(bytes.NewReader(p))
	element, text := "", ""
	for {
		switch t, err := d.Token(); x := t.(type) {
		case nil:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("%w: %v", ErrFormat, err)
		case xml.StartElement:
			element, text = x.Name.Local, ""
		case xml.CharData:
			text += string(x)
		case xml.EndElement:
			if x.Name.Local == element {
				if err := set(element, strings.TrimSpace(text)); err != nil {
					return err
				}
			}
			element = ""
		}
	}
}
