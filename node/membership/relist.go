package membership

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// relisting makes a whole list from a node's answers to a PeekAll, each of which has what was
// accepted behind the one before. It begins with what an earlier list had.
//
// The list is what the acceptor had at the moment of the last answer: an entry that was accepted
// anew since an answer is behind that answer's mark, and so in a later one.
type relisting struct {
	question Question
	was      *Answer // the earlier list, which others may read: it is never changed
	news     []Entry // what has changed since
	mark     string  // what is seen
}

// mostListed bounds the entries of a list, as a node that lies would let it grow for ever: there is
// one for each identity.
const mostListed = 1<<16 + 1<<10

// relist begins to list what a question asks for. was is an answer to the same one, or nil.
func relist(q *Question, was *Answer) *relisting {
	l := &relisting{question: *q, was: &Answer{}}
	if was != nil {
		l.was, l.mark = was, was.Mark
	}
	return l
}

// ask returns the question to put next. It never changes.
func (l *relisting) ask() *Question {
	q := l.question
	q.Seen = l.mark
	return &q
}

// take takes the answer to ask. It returns the list when that is whole: with entries sorted by key,
// one for each. Until then it returns nil. A refusal is returned as it is. An answer that does not
// fit the question is an error.
func (l *relisting) take(a *Answer) (*Answer, error) {
	switch {
	case a == nil:
		return nil, errors.New("an empty answer")
	case a.Refusal != "" || a.Promised != (Ballot{}):
		return a, nil
	case a.Since == "": // the acceptor does not know the mark: it lists all
		l.was, l.news = &Answer{}, nil
	case a.Since != l.mark:
		return nil, fmt.Errorf("a list of %q since %s, and not since %s", l.question.Key, a.Since, l.mark)
	}
	l.news = append(l.news, a.Entries...)
	switch {
	case len(l.news) > mostListed || len(l.was.Entries) > mostListed:
		return nil, fmt.Errorf("a list of more than %d records", mostListed)
	case slices.ContainsFunc(a.Entries, func(e Entry) bool { return !strings.HasPrefix(e.Key, l.question.Key) }):
		return nil, fmt.Errorf("a list of %q with others", l.question.Key)
	case a.More && (len(a.Entries) == 0 || a.Mark == l.mark):
		return nil, errors.New("a list that does not go on")
	}
	l.mark = a.Mark
	if a.More {
		return nil, nil
	}
	return &Answer{Entries: merge(l.was.Entries, l.news), With: a.With, Mark: a.Mark}, nil
}

// merge returns entries that are sorted by key, with news in the place of those of the same key. Of
// news the last of a key counts. sorted is not changed.
func merge(sorted, news []Entry) []Entry {
	if len(news) == 0 {
		return sorted
	}
	slices.SortStableFunc(news, func(x, y Entry) int { return strings.Compare(x.Key, y.Key) })
	all := make([]Entry, 0, len(sorted)+len(news))
	for i, e := range news {
		if i+1 < len(news) && news[i+1].Key == e.Key {
			continue
		}
		at, found := slices.BinarySearchFunc(sorted, e.Key, func(e Entry, key string) int {
			return strings.Compare(e.Key, key)
		})
		all = append(append(all, sorted[:at]...), e)
		if found {
			at++
		}
		sorted = sorted[at:]
	}
	return append(all, sorted...)
}
