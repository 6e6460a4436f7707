package recording

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/farkv/farkv/node/telemetry"
)

// A Writer writes a recording. It is not safe for concurrent use.
type Writer struct {
	gz    *gzip.Writer
	out   io.Writer
	count int   // samples written
	err   error // the first failure, after which nothing is written
}

// NewWriter begins a recording; by says what makes it.
func NewWriter(out io.Writer, by string) (*Writer, error) {
	w := &Writer{gz: gzip.NewWriter(out), out: out}
	return w, w.line(Header{Version: Version, By: by})
}

// Add writes a sample, which is with the underlying writer when Add returns.
func (w *Writer) Add(s *telemetry.Sample) error {
	if w.err == nil && w.count >= maxCount {
		w.err = fmt.Errorf("a recording has %d samples at most", maxCount)
	}
	if w.err == nil && w.count > 0 && w.count%perMember == 0 {
		w.err = w.gz.Close()
		w.gz.Reset(w.out)
	}
	if w.err != nil {
		return w.err
	}
	w.count++
	return w.line(s)
}

func (w *Writer) line(v any) error {
	text, err := json.Marshal(v)
	if err == nil && len(text) > maxLine {
		err = fmt.Errorf("a sample of %d bytes; a recording takes %d at most", len(text), maxLine)
	}
	if err == nil {
		_, err = w.gz.Write(append(text, '\n'))
	}
	if err == nil {
		err = w.gz.Flush()
	}
	w.err = err
	return err
}

// Close ends the recording. It does not close the underlying writer.
func (w *Writer) Close() error {
	if w.err != nil {
		return w.err
	}
	w.err = errors.New("the recording is closed")
	return w.gz.Close()
}

// A File is a recording that is being written to a file.
type File struct {
	*Writer
	file *os.File
}

// Create begins a recording in a file, which it replaces.
func Create(name, by string) (*File, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	w, err := NewWriter(f, by)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &File{w, f}, nil
}

// Close ends the recording and closes its file.
func (f *File) Close() error { return errors.Join(f.Writer.Close(), f.file.Close()) }
