package ops

import (
	"fmt"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/format"
)

// limitsOf returns how long keys and values may be in a pool; nil where its store has no limit of
// each, or does not say.
func limitsOf(p *stores.Pool) *stores.Limits {
	if p.Kind.Limits == nil {
		return nil
	}
	l, err := p.Kind.Limits(p.Header)
	if err != nil {
		return nil // opening the store tells what is wrong with its header
	}
	return &l
}

// limitRows are a row of the answer, or none.
func limitRows(l *stores.Limits) [][]string {
	if l == nil {
		return nil
	}
	if l.Pair > 0 {
		return [][]string{{"pairs", fmt.Sprintf("keys of up to %s bytes, key and value of up to %s bytes together",
			format.Count(l.Key), format.Count(l.Pair))}}
	}
	return [][]string{{"pairs", fmt.Sprintf("keys of up to %s bytes, values of up to %s bytes", format.Count(l.Key),
		format.Count(l.Value))}}
}
