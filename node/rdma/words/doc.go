// Package words is how verbs touch memory that this process maps, for fabrics whose verbs are
// executed by a processor: copies word by word, atomics, and what keeps one verb behind another.
package words
