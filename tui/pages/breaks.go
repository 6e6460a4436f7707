package pages

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/problems"
	"github.com/farkv/farkv/tui/styles"
)

// A BreakMsg tells what came of the break with the number N.
type BreakMsg struct {
	N       int
	Outcome Outcome
	Err     error
	Ended   bool
}

// Breaks chooses something to break, has it confirmed by its name, and shows how the pool heals.
type Breaks struct {
	step    step
	offers  components.Table[Offer]
	targets components.Table[Target]
	steps   components.Table[string]
	offer   Offer
	chosen  Break
	typed   string
	log     []broken
}

// step is where the choice is.
type step int

const (
	chooseKind step = iota
	chooseTarget
	chooseStep
	confirm
)

// broken is something that was broken in this session.
type broken struct {
	Break
	at      time.Time
	outcome Outcome
	err     error
	ended   bool
}

const atOnce = "at once"

// NewBreaks returns the page.
func NewBreaks() *Breaks {
	p := &Breaks{}
	p.offers = components.Table[Offer]{
		Fixed: true,
		Empty: "looking for what can be broken", Key: func(o Offer) string { return o.Kind },
		Columns: []components.Column[Offer]{
			{Title: "break", Width: 18, Left: true, Text: func(o Offer) string { return o.Kind },
				Style: func(o Offer) styles.ID {
					if o.Refused != "" {
						return styles.Muted
					}
					return styles.Plain
				}},
			{Title: "what happens", Width: 20, Left: true, Grow: true, Text: func(o Offer) string {
				if o.Refused != "" {
					return "not here: " + o.Refused
				}
				return o.About
			}, Style: func(Offer) styles.ID { return styles.Muted }},
		},
	}
	p.targets = components.Table[Target]{
		Fixed: true,
		Empty: "there is nothing of the kind", Key: func(t Target) string { return t.Name },
		Columns: []components.Column[Target]{
			{Title: "target", Width: 12, Left: true, Text: func(t Target) string { return t.Name }},
			{Title: "", Width: 20, Left: true, Grow: true, Text: func(t Target) string {
				if t.Risk != "" {
					return t.Risk
				}
				return t.About
			}, Style: func(t Target) styles.ID {
				if t.Risk != "" {
					return styles.Bad
				}
				return styles.Muted
			}},
		},
	}
	p.steps = components.Table[string]{
		Fixed: true,
		Key:   func(s string) string { return s },
		Columns: []components.Column[string]{
			{Title: "when", Width: 20, Left: true, Grow: true, Text: func(s string) string { return s }},
		},
	}
	return p
}

// Name returns the page's name.
func (*Breaks) Name() string { return "Break" }

// About says what is seen.
func (*Breaks) About() string {
	return "Breaks a part of the pool on purpose and measures how it heals: until replicas are whole again, how many " +
		"operations failed, and the longest time in which no operation ended. enter chooses; nothing happens before " +
		"the name of the target is typed."
}

// Keys are the page's own.
func (*Breaks) Keys() []key.Binding { return []key.Binding{binding("choose", "enter"), keyBack} }

// Typing reports whether all keys are for the page, since a name is being typed.
func (p *Breaks) Typing() bool { return p.step == confirm }

// Key takes a key.
func (p *Breaks) Key(e *Env, k tea.KeyMsg) (tea.Cmd, bool) {
	if e.Break == nil {
		return nil, false
	}
	switch {
	case key.Matches(k, keyBack) && p.step > chooseKind:
		p.step, p.typed = chooseKind, ""
	case key.Matches(k, keyEnter):
		p.enter(e)
	case p.step != confirm:
		return nil, false
	case k.Type == tea.KeyBackspace:
		_, n := utf8.DecodeLastRuneInString(p.typed)
		p.typed = p.typed[:len(p.typed)-n]
	case k.Type == tea.KeyRunes || k.Type == tea.KeySpace:
		if len(p.typed) < 64 {
			p.typed += string(k.Runes)
		}
	}
	return nil, true
}

// enter goes one choice further. What is broken in the end is what was confirmed.
func (p *Breaks) enter(e *Env) {
	switch p.step {
	case chooseKind:
		o, ok := p.offers.Selected()
		if !ok || o.Refused != "" {
			return
		}
		p.offer, p.chosen = o, Break{Kind: o.Kind, Amount: o.Amount}
		p.step = chooseTarget
		p.targets.Set(o.Targets, "")
	case chooseTarget:
		t, ok := p.targets.Selected()
		if !ok {
			return
		}
		p.chosen.Target, p.step = t.Name, confirm
		if len(p.offer.Steps) > 0 {
			p.step = chooseStep
			p.steps.Set(append([]string{atOnce}, p.offer.Steps...), "")
		}
	case chooseStep:
		if s, ok := p.steps.Selected(); ok && s != atOnce {
			p.chosen.Step = s
		}
		p.step = confirm
	case confirm:
		if strings.TrimSpace(p.typed) != p.chosen.Target {
			return
		}
		e.Start(len(p.log), p.chosen)
		p.log = append(p.log, broken{Break: p.chosen, at: e.Now, outcome: Outcome{Text: "begun"}})
		p.step, p.typed = chooseKind, ""
	}
}

// Told takes what came of a break.
func (p *Breaks) Told(m BreakMsg) {
	if m.N >= len(p.log) {
		return
	}
	b := &p.log[m.N]
	if m.Ended {
		b.ended, b.err = true, m.Err
		return
	}
	b.outcome = m.Outcome
}

// Move selects another row.
func (p *Breaks) Move(_ *Env, n int) {
	switch p.step {
	case chooseKind:
		p.offers.Move(n)
	case chooseTarget:
		p.targets.Move(n)
	case chooseStep:
		p.steps.Move(n)
	}
}

// Draw draws the page.
func (p *Breaks) Draw(e *Env, a components.Area) {
	if e.Break == nil {
		a.Heading(0, "Break")
		why := e.WhyNot
		if why == "" {
			why = "this monitor can break nothing"
		}
		a.Sub(2, 2, a.W-4, a.H-2).WrapText(0, styles.Plain, why)
		return
	}
	chooser := min(9, a.H/2)
	top, rest := a.Top(chooser)
	switch p.step {
	case chooseKind:
		p.offers.Set(e.Break.Offers(e.sample()), e.Filter)
		p.offers.Draw(heading(top, "What is to break", &p.offers))
	case chooseTarget:
		p.targets.Draw(heading(top, "Which: "+p.chosen.Kind, &p.targets))
	case chooseStep:
		p.steps.Draw(heading(top, "When: "+p.chosen.Kind+", "+p.chosen.Target, &p.steps))
	case confirm:
		p.drawConfirm(top)
	}
	n := min(len(p.log)+2, max(rest.H/3, 3))
	if rest.H-n >= 6 {
		var chart components.Area
		chart, rest = rest.Top(rest.H - n)
		p.chart(e, chart)
	}
	p.drawLog(e, rest)
}

func (p *Breaks) drawConfirm(a components.Area) {
	a.Heading(0, "Confirm")
	what := p.chosen.Kind + ": " + p.chosen.Target
	if p.chosen.Step != "" {
		what += ", when it comes to " + p.chosen.Step
	}
	if p.chosen.Amount > 0 {
		what += ", for " + problems.Duration(p.chosen.Amount)
	}
	y := a.Sub(2, 1, a.W-4, a.H-1).WrapText(0, styles.Strong, what) + 1
	if t, ok := p.targets.Selected(); ok && t.Risk != "" {
		y = a.Sub(2, y, a.W-4, 2).WrapText(0, styles.Bad, t.Risk) + y
	}
	x := a.Spans(2, y+1, components.Span{Style: styles.Muted, Text: "type "}, components.Span{Style: styles.Accent,
		Text: p.chosen.Target},
		components.Span{Style: styles.Muted, Text: " and enter, or esc: "})
	x = a.Text(x, y+1, styles.Strong, p.typed)
	a.Text(x, y+1, styles.Muted, "▁")
	if p.typed != "" && !strings.HasPrefix(p.chosen.Target, strings.TrimSpace(p.typed)) {
		a.Text(2, y+2, styles.Warn, "this is not the name")
	}
}

func (p *Breaks) chart(e *Env, a components.Area) {
	c := e.chart(a.W)
	for _, b := range p.log {
		c.Marks = append(c.Marks, components.Mark{X: seconds(b.at), Style: styles.Bad, Text: b.Kind})
	}
	over := Overview{}
	var items []components.Span
	c.Lines, items = over.series(&Env{H: e.H, Last: e.Last, Now: e.Now, Window: e.Window, Cursor: e.Cursor})
	a.Heading(0, "Operations a second", fitLegend(a.W-24, items)...)
	c.Draw(a.Sub(0, 1, a.W, a.H-1))
}

// drawLog draws what was broken, newest first.
func (p *Breaks) drawLog(e *Env, a components.Area) {
	a.Heading(0, "Broken in this session")
	if len(p.log) == 0 {
		a.Text(2, 1, styles.Muted, "nothing yet")
	}
	for y := 1; y < a.H && y <= len(p.log); y++ {
		b := p.log[len(p.log)-y]
		what := b.Kind + ", " + b.Target
		end := a.Text(2, y, styles.Muted, clock(e, b.at)+" ")
		end = a.Text(end, y, styles.Plain, components.Fit(what, max(a.W/3, 16))) + 2
		text, st := b.tell()
		a.Text(end, y, st, components.Fit(text, a.W-end))
	}
}

// tell returns what came of b in a line.
func (b *broken) tell() (string, styles.ID) {
	o := b.outcome
	took := components.Latency(o.UntilWhole)
	figures := fmt.Sprintf("%s failed, %d unknown, longest gap %s", components.Count(float64(o.Failed)), o.Unknown,
		components.Latency(o.LongestGap))
	switch {
	case b.err != nil:
		return b.err.Error(), styles.Bad
	case o.Done:
		return "✓ whole after " + took + ", " + figures, styles.Good
	case b.ended:
		return "ended before the pool was whole, " + figures, styles.Warn
	}
	text := "○ " + o.Text
	if o.UntilWhole > 0 {
		text += ", " + took + ", " + figures
	}
	return text, styles.Warn
}

// Figure returns throughput with what was broken, and the list of it.
func (p *Breaks) Figure(e *Env) Figure {
	f := NewOverview().Figure(e)
	f.Header = []string{"time", "kind", "target", "step", "until whole", "failed", "unknown", "longest gap", "error"}
	for _, b := range p.log {
		text := ""
		if b.err != nil {
			text = b.err.Error()
		}
		f.Rows = append(f.Rows, []string{b.at.Format(time.RFC3339Nano), b.Kind, b.Target, b.Step,
			b.outcome.UntilWhole.String(),
			fmt.Sprint(b.outcome.Failed), fmt.Sprint(b.outcome.Unknown), b.outcome.LongestGap.String(), text})
		f.Marks = append(f.Marks, components.Mark{X: seconds(b.at), Style: styles.Bad, Text: b.Kind})
	}
	return f
}
