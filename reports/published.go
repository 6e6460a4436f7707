package reports

import (
	"fmt"
	"strconv"
	"strings"
)

// Figure is what a paper states: read off the words, not the plots.
type Figure struct {
	Paper   string `json:"paper"`
	Section string `json:"section"`
	Says    string `json:"says"`
	// Printed is the number as the paper prints it, where the words have one. Ours holds when it differs from it by no
	// more than half of its last digit.
	Printed string `json:"printed,omitempty"`
	Unit    string `json:"unit,omitempty"`
	// When is the criterion of a statement that is not one number: it holds when this does.
	When string `json:"holds_when,omitempty"`
	// Fitted names the parameter that was chosen to match the statement, which then proves nothing.
	Fitted string `json:"fitted,omitempty"`
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
