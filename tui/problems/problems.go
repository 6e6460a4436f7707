// Package problems judges what is wrong with a pool, in one line each and worst first.
package problems

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/history"
)

// Severity is how bad a problem is.
type Severity int

// The severities, worst last.
const (
	Notice  Severity = iota // worth knowing
	Warning                 // the pool works; something needs a look, or heals
	Failure                 // operations fail or wait, or the next death loses data
	Loss                    // data cannot be had
)

// A Problem is a line about something that is not well.
type Problem struct {
	Severity Severity
	Text     string
	Since    time.Time // zero: not known
}

// Thresholds from which something is a problem.
const (
	StaleAfter   = 5 * time.Second // a process writes its record once a second
	NoMasterFor  = 3 * time.Second // an election takes a lease
	StuckAfter   = time.Second
	UnseenFor    = 2 * time.Second
	RecentFor    = time.Minute // for which failed operations are told of
	FullAt       = 0.9
	NearlyFullAt = 0.98
)

// Find returns what is wrong at now, which is a time by the clock of the samples; worst first, and
// of equals the one that is so longest.
func Find(h *history.History, now time.Time) (all []Problem) {
	s := h.Last
	if s == nil {
		return nil
	}
	f := finder{h: h, s: s, now: now}
	f.unseen()
	f.data()
	f.nodes()
	f.master()
	f.operations()
	f.clients()
	f.fill()
	f.processes()
	slices.SortStableFunc(f.all, func(a, b Problem) int {
		return cmp.Or(-cmp.Compare(a.Severity, b.Severity), a.Since.Compare(b.Since))
	})
	return f.all
}

type finder struct {
	h   *history.History
	s   *telemetry.Sample
	now time.Time
	all []Problem
}

func (f *finder) add(v Severity, since time.Time, format string, a ...any) {
	f.all = append(f.all, Problem{v, fmt.Sprintf(format, a...), since})
}

// ago returns how long ago t was, as people say it.
func (f *finder) ago(t time.Time) string { return Duration(f.now.Sub(t)) }

// Duration returns d in whole seconds below two minutes, else in minutes, hours or days; fractions
// below a second.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "0 s"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// unseen finds a pool that the monitor cannot open, or cannot see all of.
func (f *finder) unseen() {
	why := f.s.Problem
	if old := f.now.Sub(f.s.At); old > UnseenFor+StaleAfter || why != "" && old > UnseenFor {
		text := fmt.Sprintf("the pool was last seen %s ago", f.ago(f.s.At))
		if why != "" {
			text += ": " + why
		}
		f.add(Failure, f.s.At, "%s", text)
	} else if why != "" {
		f.add(Warning, f.h.Since.Unseen, "%s", why)
	}
}

func (f *finder) data() {
	if f.s.Lost {
		f.add(Loss, f.h.Since.Lost, "data lost: all replicas of a part are on nodes that are gone")
	}
}

// nodes finds nodes that are gone and that no other one stands for.
func (f *finder) nodes() {
	since := f.h.Since.Down
	ids := make([]int, 0, len(since))
	for id := range since {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b int) int { return cmp.Or(since[a].Compare(since[b]), cmp.Compare(a, b)) })
	if len(ids) > 0 {
		var names []string
		for _, id := range ids {
			names = append(names, fmt.Sprint(id))
		}
		noun := "node "
		if len(ids) > 1 {
			noun = "nodes "
		}
		v := Warning
		if f.s.MayDie <= 0 || f.s.Spares == 0 {
			v = Failure
		}
		f.add(v, since[ids[0]], "%s%s gone for %s, %s, %s", noun, strings.Join(names, ", "), f.ago(since[ids[0]]),
			f.spares(),
			f.deaths())
	} else if f.s.Busy {
		f.add(Warning, f.h.Since.Busy, "replicas are being mended for %s, %s", f.ago(f.h.Since.Busy), f.deaths())
	} else if !f.s.Whole && f.seen() {
		f.add(Warning, f.h.Since.NotWhole, "replicas not whole for %s, %s", f.ago(f.h.Since.NotWhole), f.deaths())
	} else if f.s.MayDie == 0 && f.seen() {
		f.add(Notice, time.Time{}, "no further death survived")
	}
	for _, n := range f.s.Nodes {
		if at, ok := f.h.Since.Counters[n.ID]; ok {
			f.add(Notice, at, "node %d shows no counters: %s", n.ID, n.Problem)
		}
	}
}

// seen reports whether the newest sample shows the pool.
func (f *finder) seen() bool { return f.s.Epoch > 0 && len(f.s.Nodes) > 0 }

func (f *finder) spares() string {
	switch {
	case f.s.Spares == 0:
		return "no spare"
	case f.s.Busy:
		return "a spare is being filled"
	case f.s.Spares == 1:
		return "1 spare"
	}
	return fmt.Sprintf("%d spares", f.s.Spares)
}

func (f *finder) deaths() string {
	switch n := f.s.MayDie; {
	case n < 0:
		return "further deaths survived not known"
	case n == 0:
		return "no further death survived"
	case n == 1:
		return "1 more node may die"
	default:
		return fmt.Sprintf("%d more nodes may die", n)
	}
}

func (f *finder) master() {
	at := f.h.Since.NoMaster
	if at.IsZero() || f.now.Sub(at) < NoMasterFor {
		return
	}
	v := Warning
	if len(f.h.Since.Down)+len(f.h.Since.Dead) > 0 {
		v = Failure
	}
	f.add(v, at, "no master for %s: nothing that dies is replaced or recovered", f.ago(at))
}

// operations finds what stands still, what failed, and what may or may not have happened.
func (f *finder) operations() {
	var oldest *telemetry.Process
	stuck := 0
	for i := range f.s.Processes {
		p := &f.s.Processes[i]
		if p.Oldest < StuckAfter {
			continue
		}
		stuck++
		if oldest == nil || p.Oldest > oldest.Oldest {
			oldest = p
		}
	}
	if oldest != nil {
		more := ""
		if stuck > 1 {
			more = fmt.Sprintf(" (and of %d more processes)", stuck-1)
		}
		f.add(Failure, f.s.At.Add(-oldest.Oldest), "an operation of %s runs for %s%s", Name(oldest),
			Duration(oldest.Oldest), more)
	}
	var unknown, failed uint64
	var at time.Time
	for _, p := range f.h.In(f.now.Add(-RecentFor), f.now) {
		sum := p.Sum()
		if sum.Unknown+sum.Failed > 0 {
			at = p.At
		}
		unknown, failed = unknown+sum.Unknown, failed+sum.Failed
	}
	if unknown > 0 {
		f.add(Warning, at, "%s of unknown outcome in the last minute", Counted(unknown, "write"))
	}
	if failed > 0 {
		f.add(Warning, at, "%s failed in the last minute", Counted(failed, "operation"))
	}
}

// Counted returns n and the noun, in the plural unless n is 1.
func Counted(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Name names a process.
func Name(p *telemetry.Process) string {
	if p.Name == "" {
		return fmt.Sprintf("process %d on %s", p.PID, p.Host)
	}
	return fmt.Sprintf("%s (process %d on %s)", p.Name, p.PID, p.Host)
}

// clients finds dead clients that wait for their recovery.
func (f *finder) clients() {
	dead := 0
	var first *telemetry.Client
	var since time.Time
	for i := range f.s.Clients {
		c := &f.s.Clients[i]
		at, ok := f.h.Since.Dead[c.ID]
		if !ok {
			continue
		}
		dead++
		if first == nil || at.Before(since) {
			first, since = c, at
		}
	}
	switch {
	case dead == 1:
		f.add(Warning, since, "client %d %s for %s, not recovered", first.ID, first.State, f.ago(since))
	case dead > 1:
		f.add(Warning, since, "%d clients not recovered, client %d for %s", dead, first.ID, f.ago(since))
	}
}

func (f *finder) fill() {
	for _, p := range f.s.Fill {
		if p.All == 0 {
			continue
		}
		part := float64(p.Used) / float64(p.All)
		v := Warning
		if part > NearlyFullAt {
			v = Failure
		}
		if part > FullAt {
			f.add(v, f.h.Since.Full[p.Of], "%s %.0f %% full", p.Of, 100*part)
		}
	}
}

// processes finds records that nothing is written to any more, though their claim stands.
func (f *finder) processes() {
	stale := 0
	var first *telemetry.Process
	var since time.Time
	for i := range f.s.Processes {
		p := &f.s.Processes[i]
		at, ok := f.h.Since.Silent[history.IDOf(p)]
		if !ok || f.s.At.Sub(at) < StaleAfter {
			continue
		}
		stale++
		if first == nil || at.Before(since) {
			first, since = p, at
		}
	}
	switch {
	case stale == 1:
		f.add(Warning, since, "%s tells nothing for %s: stopped, hung, or cut off", Name(first), f.ago(since))
	case stale > 1:
		f.add(Warning, since, "%d processes tell nothing, %s for %s", stale, Name(first), f.ago(since))
	}
	if f.s.More > 0 {
		f.add(Notice, time.Time{}, "no room for the records of %d more: their operations are not shown", f.s.More)
	}
}

// Well returns the line of a pool without problems.
func Well(s *telemetry.Sample) string {
	if s == nil {
		return "waiting for the first sample"
	}
	text := "all well: replicas whole"
	switch {
	case s.MayDie == 1:
		text += ", 1 more node may die"
	case s.MayDie > 1:
		text += fmt.Sprintf(", %d more nodes may die", s.MayDie)
	}
	if s.Spares > 0 {
		text += ", " + Counted(uint64(s.Spares), "spare")
	}
	return text
}
