package workloads

import "github.com/farkv/farkv/node/telemetry"

// A Histogram counts durations: see telemetry.Histogram.
type Histogram = telemetry.Histogram
