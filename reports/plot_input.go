package reports

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/reports/plot"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/recording"
	"github.com/farkv/farkv/workloads/runner"
)

// mostInput bounds a file of results in bytes.
const mostInput = 64 << 20

// input is a file to draw.
type input struct {
	name      string // of the file, without its folder and ending
	result    *runner.Result
	report    *eval.Report
	recording *recording.OpenFile
}

// The kinds of files that can be drawn.
const (
	aRecording = "a recording"
	aResult    = "go-ycsb's results"
	aReport    = "a report"
)

func (in *input) kind() string {
	switch {
	case in.recording != nil:
		return aRecording
	case in.result != nil:
		return aResult
	}
	return aReport
}

// Draw makes charts of saved files: recordings, files of go-ycsb's --results, or answers of farkv
// report -o json. Several of one kind are compared. Errors are workloads.UsageErrors where the
// files do not belong together.
func Draw(files []string) (*plot.Page, error) {
	var all []*input
	defer func() {
		for _, in := range all {
			if in.recording != nil {
				_ = in.recording.Close() // it was read only
			}
		}
	}()
	for _, file := range files {
		in, err := open(file)
		if err != nil {
			return nil, err
		}
		all = append(all, in)
		if first := all[0].kind(); in.kind() != first {
			return nil, workloads.Usagef("%s is %s and %s is %s: files of one kind are compared", files[0], first, file,
				in.kind())
		}
	}
	label(all)
	switch all[0].kind() {
	case aRecording:
		return drawRecordings(all)
	case aResult:
		return drawResults(all), nil
	}
	return drawReports(all), nil
}

func open(file string) (*input, error) {
	in := &input{name: strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text := bufio.NewReader(io.LimitReader(f, mostInput+1))
	if head, err := text.Peek(2); err != nil && err != io.EOF {
		return nil, err
	} else if recording.Is(head) {
		in.recording, err = recording.Open(file)
		return in, err
	}
	all, err := io.ReadAll(text)
	if err == nil && len(all) > mostInput {
		err = fmt.Errorf("larger than %d MiB", mostInput>>20)
	}
	if err == nil {
		err = in.read(all)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return in, nil
}

// read reads results or a report, which their members tell apart.
func (in *input) read(text []byte) (err error) {
	var members struct {
		Version    int    `json:"version"`
		Paper      string `json:"paper"`
		Parts      []*eval.Part
		Unit       string  `json:"latency_unit"`
		Throughput float64 `json:"throughput"`
	}
	err = json.Unmarshal(text, &members)
	switch {
	case err == nil && members.Unit == "us":
		in.result, err = runner.ReadResult(bytes.NewReader(text))
	case err == nil && members.Paper != "":
		if members.Version > reportVersion {
			return fmt.Errorf("the report has version %d; this program reads 1 to %d", members.Version, reportVersion)
		}
		in.report = new(eval.Report)
		err = json.Unmarshal(text, in.report)
		if err == nil && slices.Contains(in.report.Parts, nil) {
			err = errors.New("a part of the report is null")
		}
	default:
		err = errors.New("neither a recording, nor go-ycsb's results, nor a report (hint: they come from --record, " +
			"'go-ycsb run ... --results FILE' and 'farkv report ... -o json')")
	}
	return err
}

// reportVersion is the version of JSON answers that can be read.
const reportVersion = 1

// label names results after their databases; where those are the same, their files tell them apart.
func label(all []*input) {
	n := map[string]int{}
	for _, in := range all {
		if in.result != nil {
			n[in.result.Database]++
		}
	}
	for _, in := range all {
		if in.result != nil && n[in.result.Database] == 1 {
			in.name = in.result.Database
		}
	}
}

func drawReports(all []*input) *plot.Page {
	page := all[0].report.Page()
	for _, in := range all[1:] {
		more := in.report.Page()
		page.Title += "; " + more.Title
		page.Lead += "\n\n" + more.Lead
		page.Notes, page.Charts = append(page.Notes, more.Notes...), append(page.Charts, more.Charts...)
	}
	return page
}
