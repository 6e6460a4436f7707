// Package memcopy is how verbs access memory that this process maps, for fabrics with verbs that
// are executed by a processor: copies word by word, atomics, and what keeps one verb behind
// another.
package memcopy
