package plot

import _ "embed" // of the style sheets

//go:embed chart.css
var style string

//go:embed page.css
var pageStyle string
