package eval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Figure is a statement of a paper, taken from its text and not from its plots.
type Figure struct {
	Paper   string `json:"paper"`
	Section string `json:"section"`
	Says    string `json:"says"`
	// Printed is the number as the paper prints it, where the words have one. Ours holds when it
	// differs from it by no more than half of its last digit.
	Printed string `json:"printed,omitempty"`
	Unit    string `json:"unit,omitempty"`
	// When is the criterion of a statement that is not one number: it holds when this does.
	When string `json:"holds_when,omitempty"`
	// Fitted names the parameter that was chosen to match the statement, which then proves nothing.
	Fitted string `json:"fitted,omitempty"`
}

// read parses the statements and tables of the paper. The file is part of the program: read panics
// when it is invalid.
func (p *Paper) read(text []byte) {
	var file struct {
		Figures []struct {
			About string
			Figure
		}
		Tables map[string]map[string][]string
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		panic(fmt.Sprintf("published figures of %s: %v", p.Name, err))
	}
	p.Tables, p.Figures = file.Tables, map[string]Figure{}
	for _, f := range file.Figures {
		if _, twice := p.Figures[f.About]; twice || f.Says == "" || f.Section == "" ||
			(f.Printed == "") == (f.When == "") {
			panic(fmt.Sprintf("published figures of %s: %+v: want one of a name, what it says, its section, and "+
				"either printed or holds_when", p.Name, f))
		}
		if f.Printed != "" {
			Value(f.Printed) // panics
		}
		f.Paper = p.Name
		p.Figures[f.About] = f.Figure
	}
}

// number reads a number in print, and half of its last digit, to which it is rounded.
func number(printed string) (value, half float64) {
	value, err := strconv.ParseFloat(printed, 64)
	if err != nil {
		panic(fmt.Sprintf("%q is no number in print", printed))
	}
	half = 0.5
	if _, decimals, ok := strings.Cut(printed, "."); ok {
		for range len(decimals) {
			half /= 10
		}
	}
	return value, half
}

// Value is the number in print.
func Value(printed string) float64 {
	v, _ := number(printed)
	return v
}
