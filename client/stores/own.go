package stores

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/node"
)

// Option returns the store's option, or part of an option, of that name. nil: there is none.
func (k *Kind) Option(name string) *Option {
	all := k.settable()
	for i := range k.Options {
		all = append(all, &k.Options[i])
	}
	for _, o := range all {
		if o.Name == name {
			return o
		}
	}
	return nil
}

// settable returns the options that have values: of an option with parts its parts.
func (k *Kind) settable() (list []*Option) {
	for i := range k.Options {
		o := &k.Options[i]
		if o.Parts == nil {
			list = append(list, o)
		}
		for j := range o.Parts {
			list = append(list, &o.Parts[j])
		}
	}
	return list
}

// Choose returns those values in v that the store has an option for, chosen at that time.
func (k *Kind) Choose(v Values, when When) Values {
	chosen := Values{}
	for _, o := range k.settable() {
		if x, ok := v[o.Name]; ok && o.When == when {
			chosen[o.Name] = x
		}
	}
	return chosen
}

// Uncached returns the options of a worker that caches nothing, but otherwise has those of o.
func (k *Kind) Uncached(o Options) Options {
	if k.Option(CacheBytes) != nil {
		o.Own = o.Own.With(Values{CacheBytes: 0})
	}
	return o
}

// Heeds returns an error wrapping ErrParams when v sets an option that the store does not have, or
// has an invalid value.
func (k *Kind) Heeds(v Values) error {
	for _, name := range slices.Sorted(maps.Keys(v)) {
		o := k.Option(name)
		if o == nil || o.Parts != nil {
			return fmt.Errorf("%w: a %s pool: %s", ErrParams, k.Name, foreign(name))
		}
		if err := o.check(v[name]); err != nil {
			return fmt.Errorf("%w: a %s pool: %w", ErrParams, k.Name, err)
		}
	}
	return nil
}

// foreign returns a text with the stores that have an option.
func foreign(name string) string {
	var having []string
	path := name
	for _, store := range Names() {
		if o := kinds[store].Option(name); o != nil && o.Parts == nil {
			having, path = append(having, store), kinds[store].path(name)
		}
	}
	if having == nil {
		return name + ": no store has this option"
	}
	return fmt.Sprintf("%s: an option of %s", path, orList(having))
}

// completed returns v with the defaults of all options that are chosen at that time.
func (k *Kind) completed(v Values, when When) Values {
	all := v.With(nil)
	for _, o := range k.settable() {
		if _, set := all[o.Name]; !set && o.When == when && o.Default != nil {
			all[o.Name] = o.Default
		}
	}
	return all
}

// Setting is an option of an open pool's store.
type Setting struct {
	Name  string `json:"name"`
	When  string `json:"when"`  // made with the pool, or chosen by each worker when it is opened
	Value any    `json:"value"` // the pool's; of one that workers choose, the default. Durations are written as 1.5s.
	Doc   string `json:"doc"`
}

// Settings lists the options of an open pool's store.
func (k *Kind) Settings(h node.Header) []Setting {
	var held map[string]any
	_ = json.Unmarshal(h.Params, &held) // opening the store reports what is wrong with its header
	list := []Setting{}
	for _, o := range k.settable() {
		s := Setting{Name: o.Name, When: o.When.String(), Value: o.Default, Doc: o.Doc}
		if v, ok := held[o.field()]; ok && o.When == Made {
			s.Value = v
			if ns, ok := v.(float64); ok && o.Type == Duration {
				s.Value = time.Duration(ns)
			}
		}
		if o.Type == Duration {
			s.Value = fmt.Sprint(s.Value)
		}
		list = append(list, s)
	}
	return list
}

// Can returns texts on what the store's pools can do, and what they cannot.
func (k *Kind) Can() []string {
	list := []string{"replicas: " + k.Replicas}
	for _, c := range []struct {
		can     bool
		yes, no string
	}{
		{k.Split, "index and data may differ in replicas", ""},
		{k.Scans, "scans", "no scans"},
		{k.Grows(), strings.TrimSpace("grows " + k.Growth), "does not grow"},
	} {
		switch {
		case c.can:
			list = append(list, c.yes)
		case c.no != "":
			list = append(list, c.no)
		}
	}
	return list
}

// Flag returns the flag by which a command line sets an option of the store.
func (k *Kind) Flag(name string, v any) string {
	return fmt.Sprintf("--%s=%s", k.path(name), k.Option(name).Text(v))
}

// path returns an option's name. Of a part the name of the whole option is in front of it.
func (k *Kind) path(name string) string {
	for _, whole := range k.Options {
		if slices.ContainsFunc(whole.Parts, func(p Option) bool { return p.Name == name }) {
			return whole.Name + " " + name
		}
	}
	return name
}

// Flags returns the flags by which a command line sets the options in v that the store has.
func (k *Kind) Flags(v Values) (flags []string) {
	for _, o := range k.settable() {
		if x, ok := v[o.Name]; ok {
			flags = append(flags, k.Flag(o.Name, x))
		}
	}
	return flags
}
