package recording

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"sort"
	"time"

	"github.com/farkv/farkv/node/telemetry"
)

// A Reader reads a recording, of which it takes no size and no text on trust. It is not safe for
// concurrent use.
type Reader struct {
	in      io.ReadSeeker
	header  Header
	members []member
	times   []time.Time // of the samples; never earlier than one before
	events  []telemetry.Event
	problem string

	lines *lines // of the member that is being read
	next  int    // number of the sample on the next line
}

// member is where gzip begins anew.
type member struct {
	offset int64
	first  int // sample
}

// Is reports whether a file that begins with head may be a recording. Two bytes suffice.
func Is(head []byte) bool { return bytes.HasPrefix(head, []byte("\x1f\x8b")) }

// NewReader reads all of a recording once, to learn what is where. A recording that ends in the
// middle, or is damaged from some place on, is read up to there: see Problem. Errors are those of
// what is no recording.
func NewReader(in io.ReadSeeker) (*Reader, error) {
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	r := &Reader{in: in}
	file := &counted{in: bufio.NewReader(in)}
	if head, _ := file.in.Peek(2); !Is(head) {
		return nil, errors.New("no recording: a .fkr file is compressed by gzip")
	}
	l, err := newLines(file)
	if err == nil {
		err = r.readHeader(l)
	}
	if err != nil {
		return nil, fmt.Errorf("no recording, or none with a sample: %w", err)
	}
	for offset := int64(0); err == nil; {
		r.members = append(r.members, member{offset, len(r.times)})
		if err = r.scan(l); err == nil {
			offset = file.n
			l, err = newLines(file)
		}
	}
	if err != io.EOF {
		r.problem = fmt.Sprintf("the recording ends early (%v): it is read up to there, %d samples", err, len(r.times))
	}
	return r, nil
}

func (r *Reader) readHeader(l *lines) error {
	line, err := l.read()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &r.header); err != nil || r.header.Version < 1 {
		return errors.New("its first line is not that of a recording")
	}
	if r.header.Version > Version {
		return fmt.Errorf("it has version %d; this program reads 1 to %d", r.header.Version, Version)
	}
	r.header.By = tidy(r.header.By)
	return nil
}

// scan notes the times and events of a member's samples. At its end it returns nil.
func (r *Reader) scan(l *lines) error {
	for {
		line, err := l.read()
		if err == io.EOF {
			return nil
		}
		var s struct {
			At     time.Time         `json:"at"`
			Events []json.RawMessage `json:"events"`
		}
		if err == nil {
			err = json.Unmarshal(line, &s)
		}
		if err == nil && len(r.times) == maxCount {
			err = fmt.Errorf("more than %d samples", maxCount)
		}
		if err != nil {
			return err
		}
		if n := len(r.times); n > 0 && s.At.Before(r.times[n-1]) {
			s.At = r.times[n-1] // the clock went back
		}
		r.times = append(r.times, s.At)
		for _, text := range s.Events[:min(len(s.Events), maxEvents-len(r.events))] {
			var e telemetry.Event
			if err := json.Unmarshal(text, &e); err != nil {
				return err
			}
			clean(&e)
			r.events = append(r.events, e)
		}
	}
}

// Header returns the recording's first line.
func (r *Reader) Header() Header { return r.header }

// Problem says why the recording ends before its end; "": it does not.
func (r *Reader) Problem() string { return r.problem }

// Len returns the number of samples.
func (r *Reader) Len() int { return len(r.times) }

// Time returns when a sample was taken; times never go back.
func (r *Reader) Time(i int) time.Time { return r.times[i] }

// Events returns the events of all samples.
func (r *Reader) Events() []telemetry.Event { return slices.Clone(r.events) }

// Find returns the last sample that is not after t; the first one where there is none.
func (r *Reader) Find(t time.Time) int {
	return max(sort.Search(len(r.times), func(i int) bool { return r.times[i].After(t) })-1, 0)
}

// Sample reads sample i, from 0 to Len()-1. The one behind the one that was read last comes
// fastest.
func (r *Reader) Sample(i int) (*telemetry.Sample, error) {
	s, err := r.sample(i)
	if err != nil {
		r.lines = nil
		return nil, fmt.Errorf("sample %d of %d: %w", i, len(r.times), err)
	}
	return s, nil
}

func (r *Reader) sample(i int) (*telemetry.Sample, error) {
	if i < 0 || i >= len(r.times) {
		return nil, errors.New("there is none")
	}
	m := sort.Search(len(r.members), func(k int) bool { return r.members[k].first > i }) - 1
	if r.lines == nil || r.next > i || r.next <= r.members[m].first {
		if err := r.begin(m); err != nil {
			return nil, err
		}
	}
	for {
		line, err := r.lines.read()
		if err != nil {
			return nil, err
		}
		if r.next++; r.next > i {
			return decode(line)
		}
	}
}

// begin goes to the first sample of a member.
func (r *Reader) begin(m int) error {
	_, err := r.in.Seek(r.members[m].offset, io.SeekStart)
	if err == nil {
		r.lines, err = newLines(&counted{in: bufio.NewReader(r.in)})
	}
	if err == nil && m == 0 {
		_, err = r.lines.read() // the header
	}
	r.next = r.members[m].first
	return err
}

// Samples yields all samples in order, and ends behind the first error.
func (r *Reader) Samples() iter.Seq2[*telemetry.Sample, error] {
	return func(yield func(*telemetry.Sample, error) bool) {
		for i := range r.Len() {
			if s, err := r.Sample(i); !yield(s, err) || err != nil {
				return
			}
		}
	}
}

// OpenFile is a recording that is read from a file.
type OpenFile struct {
	*Reader
	io.Closer
}

// Open reads a recording's file, which stays open until Close.
func Open(name string) (*OpenFile, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	r, err := NewReader(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), f.Close())
	}
	return &OpenFile{r, f}, nil
}

// lines are those of a gzip member.
type lines struct {
	text *bufio.Reader
	line []byte // the last one
}

func newLines(file *counted) (*lines, error) {
	gz, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	gz.Multistream(false)
	return &lines{text: bufio.NewReader(gz)}, nil
}

// read returns the next line, until the next call; io.EOF behind the last one.
func (l *lines) read() ([]byte, error) {
	for l.line = l.line[:0]; ; {
		part, err := l.text.ReadSlice('\n')
		l.line = append(l.line, part...)
		switch {
		case len(l.line) > maxLine+1:
			return nil, fmt.Errorf("a line of more than %d bytes", maxLine)
		case err == nil:
			return l.line, nil
		case err == io.EOF && len(l.line) > 0:
			return nil, io.ErrUnexpectedEOF
		case err != bufio.ErrBufferFull:
			return nil, err
		}
	}
}

// counted counts what gzip takes of a file. gzip takes no byte beyond a member's end of an
// io.ByteReader.
type counted struct {
	in *bufio.Reader
	n  int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *counted) ReadByte() (byte, error) {
	b, err := c.in.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}
