package cm

import "github.com/farkv/farkv/node/rowan/shards"

// What tests of messages use.

const (
	MaxReports, MaxLoads, MaxDamages = maxReports, maxLoads, maxDamages
	MaxDigests, MaxReason            = maxDigests, maxReason
	MostAnswer                       = boxBytes - 16 // the header of rpc
)

func EncodeAnswer(term uint64, restarted bool, r Report) []byte {
	a := answer{term: term, restarted: restarted, Report: r}
	return a.encode()
}

func EncodeEnded(term uint64, why string) []byte {
	a := answer{term: term, ended: why}
	return a.encode()
}

func DecodeEnded(p []byte) (why string) {
	if a, err := decodeAnswer(p); err == nil {
		return a.ended
	}
	return ""
}

func DecodeAnswer(p []byte) (term uint64, restarted bool, r Report, err error) {
	a, err := decodeAnswer(p)
	if err != nil {
		return 0, false, r, err
	}
	return a.term, a.restarted, a.Report, nil
}

func (s *Server) SomeOf(all []Digest) []Digest { return s.someOf(all) }

func EncodeQuestion(term, epoch uint64, committed bool) []byte {
	return question{term, epoch, committed}.encode()
}

func DecodeQuestion(p []byte) (term, epoch uint64, committed, ok bool) {
	q, ok := decodeQuestion(p)
	return q.term, q.epoch, q.committed, ok
}

// Compared returns what the event of a comparison says.
func Compared(differ []shards.Replica) string { return compared(differ) }

// Counted returns the loads of the last of some periods, given what members had counted at their
// ends.
func Counted(configs []*shards.Config, ends ...[]Report) (loads []shards.Load) {
	m := &Manager{}
	for i, reports := range ends {
		m.c = configs[i]
		var answers []*answer
		for _, r := range reports {
			answers = append(answers, &answer{Report: r})
		}
		loads = m.count(answers)
	}
	return loads
}

// Collected returns how many digests a manager has that was told some in one term, and is in
// another.
func Collected(told, now *shards.Config, reports []Report) int {
	m := &Manager{c: told}
	var answers []*answer
	for _, r := range reports {
		answers = append(answers, &answer{term: told.Term, Report: r})
	}
	m.collect(answers)
	m.c = now
	m.collect(answers)
	return len(m.digests)
}
