package workloads

import (
	"slices"
	"strings"
)

// maxNear bounds the words that a misspelt one may stand for: more of them are no hint.
const maxNear = 3

// Nearest returns the words of known that name is most likely a misspelling of, up to three: those
// at the least edit distance, and at most a third of name's length away, or one mistake, or, where
// there are none, those that begin with name. It returns nil when nothing is near, or more than
// three words are.
func Nearest(name string, known []string) []string {
	near := closest(name, known)
	if near == nil && len(name) > 1 {
		near = beginning(name, known)
	}
	if len(near) > maxNear {
		return nil
	}
	return near
}

// closest returns the words at the least edit distance. A short word has few mistakes.
func closest(name string, known []string) (near []string) {
	least := max(len(name)/3, 1) + 1 // one more than the mistakes that are allowed
	for _, word := range known {
		switch d := editDistance(name, word); {
		case d < least:
			near, least = []string{word}, d
		case d == least && near != nil && !slices.Contains(near, word):
			near = append(near, word)
		}
	}
	return near
}

// beginning returns the words that begin with name.
func beginning(name string, known []string) (near []string) {
	for _, word := range known {
		if strings.HasPrefix(word, name) && !slices.Contains(near, word) {
			near = append(near, word)
		}
	}
	return near
}

// DidYouMean is a question with a space behind it, such as "did you mean load? ", or "" when no
// word of known is near name.
func DidYouMean(name string, known []string) string {
	near := Nearest(name, known)
	if near == nil {
		return ""
	}
	return "did you mean " + strings.Join(near, " or ") + "? "
}

// editDistance is the number of bytes to insert, delete or change, or of neighbors to swap, that
// turns a into b (optimal string alignment).
func editDistance(a, b string) int {
	rows := [3][]int{make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)}
	before, above, row := rows[0], rows[1], rows[2]
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, above, row = above, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := above[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, above[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
