package reports

// Figure is what a paper states: read off the words, not the plots.
type Figure struct {
	Paper   string  `json:"paper"`
	Section string  `json:"section"`
	Says    string  `json:"says"`
	Value   float64 `json:"value,omitempty"` // where the words have a number
	Unit    string  `json:"unit,omitempty"`
}
