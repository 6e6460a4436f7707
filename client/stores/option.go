package stores

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Option is a parameter that a store declares as its own. Flags, properties, help and status follow
// from the declaration.
type Option struct {
	Name string // of its flag, such as cache-bytes; its property is farkv.cachebytes
	When When
	Type Type
	// Default is the value when the option is not set. nil: it follows from other parameters, in
	// the way that Derived describes.
	Default any
	Derived string
	// Min and Max bound its values; Max 0: nothing above. Of a Duration they are nanoseconds.
	Min, Max float64
	Doc      string // what it is for, without its store, default and bounds
	// Parts are options that are set together, as name=value with commas between. Each part has a
	// value of its own. The option that has parts has no value.
	Parts []Option
	// Field is what the option is called in the header of a pool; "": as its Name, with _ for -.
	Field string
}

// When says when an option is chosen.
type When int

const (
	Made   When = iota // with the pool: it holds for all workers
	Opened             // by a worker, for itself
)

func (w When) String() string { return [...]string{"made", "opened"}[w] }

// Type is that of an option's values.
type Type int

const (
	Int      Type = iota // an int
	Bytes                // an int, which is also written as 8MiB
	Float                // a float64
	Bool                 // a bool
	Duration             // a time.Duration
)

func (t Type) String() string { return [...]string{"int", "size", "float", "bool", "duration"}[t] }

// CacheBytes is the option for the size of one worker's cache, of all stores with such a cache. 0
// turns the cache off.
const CacheBytes = "cache-bytes"

// Values are the options that are set, by name. An option that is absent has its default. The Go
// type of a value is that of the option's Type.
type Values map[string]any

// Int returns the value of an option of type Int or Bytes; 0 where there is none.
func (v Values) Int(name string) int { return value[int](v, name) }

// Float returns the value of an option of type Float; 0 where there is none.
func (v Values) Float(name string) float64 { return value[float64](v, name) }

// Bool returns the value of an option of type Bool; false where there is none.
func (v Values) Bool(name string) bool { return value[bool](v, name) }

// Duration returns the value of an option of type Duration; 0 where there is none.
func (v Values) Duration(name string) time.Duration { return value[time.Duration](v, name) }

func value[T any](v Values, name string) T {
	t, _ := v[name].(T) // Heeds refuses values of another type
	return t
}

// With returns a copy of v with others added. Where both have a value, that of others holds.
func (v Values) With(others Values) Values {
	all := maps.Clone(v)
	if all == nil {
		all = Values{}
	}
	maps.Copy(all, others)
	return all
}

// Read parses text and sets the option, or each of its parts that the text names. The error says
// which values are valid.
func (v Values) Read(o *Option, text string) error {
	if o.Parts == nil {
		x, err := o.Parse(text)
		if err == nil {
			v[o.Name] = x
		}
		return err
	}
	for _, part := range strings.Split(text, ",") {
		name, text, ok := strings.Cut(strings.TrimSpace(part), "=")
		i := slices.IndexFunc(o.Parts, func(p Option) bool { return p.Name == name })
		if !ok || i < 0 {
			return fmt.Errorf("%q: want %s", part, o.list())
		}
		if err := v.Read(&o.Parts[i], text); err != nil {
			return fmt.Errorf("%s=%s: %w", name, text, err)
		}
	}
	return nil
}

// Parse reads a value of the option. The error says which values are valid, such as "want 0 to 16".
func (o *Option) Parse(text string) (v any, err error) {
	text = strings.TrimSpace(text)
	switch o.Type {
	case Int:
		v, err = strconv.Atoi(text)
	case Bytes:
		n, ok := ParseBytes(text)
		if v = int(n); !ok {
			err = strconv.ErrSyntax
		}
	case Float:
		v, err = strconv.ParseFloat(text, 64)
	case Bool:
		v, err = strconv.ParseBool(strings.ToLower(text))
	case Duration:
		v, err = time.ParseDuration(text)
	}
	if err != nil || o.check(v) != nil {
		return nil, errors.New("want " + o.wants())
	}
	return v, nil
}

// check reports what is wrong with a value.
func (o *Option) check(v any) error {
	n, ok := 0.0, false
	switch o.Type {
	case Int, Bytes:
		var i int
		i, ok = v.(int)
		n = float64(i)
	case Float:
		n, ok = v.(float64)
	case Bool:
		_, ok = v.(bool)
	case Duration:
		var d time.Duration
		d, ok = v.(time.Duration)
		n = float64(d)
	}
	if !ok || !(n >= o.Min && (o.Max == 0 || n <= o.Max)) { // NaN is neither
		return fmt.Errorf("%s %v: want %s", o.Name, v, o.wants())
	}
	return nil
}

// wants returns a text with the valid values.
func (o *Option) wants() string {
	switch {
	case o.Type == Bytes && o.Max > 0:
		return fmt.Sprintf("a number of bytes from %s to %s", BytesText(int(o.Min)), BytesText(int(o.Max)))
	case o.Type == Bytes && o.Min == 0:
		return "a number of bytes such as 8MiB, or 0"
	case o.Type == Bytes:
		return "a number of bytes such as 8MiB"
	case o.Type == Bool:
		return "true or false"
	case o.Type == Duration:
		return "a time above 0, such as 90ms"
	case o.Max == 0:
		return fmt.Sprintf("%g or more", o.Min)
	}
	return fmt.Sprintf("%.0f to %.0f", o.Min, o.Max)
}

// Text writes a value as Parse reads it.
func (o *Option) Text(v any) string {
	if n, ok := v.(int); ok && o.Type == Bytes {
		return BytesText(n)
	}
	return fmt.Sprint(v)
}

// Otherwise returns a text with the default.
func (o *Option) Otherwise() string {
	if o.Default == nil {
		return o.Derived
	}
	return o.Text(o.Default)
}

// Help returns what the option is for. Of an option with parts it also lists the parts, with their
// defaults and bounds.
func (o *Option) Help() string {
	if o.Parts == nil {
		return o.Doc
	}
	return o.Doc + ": " + o.list()
}

// worthSaying is the greatest bound that help texts mention. Users do not reach greater ones.
const worthSaying = 1 << 10

// list describes the text of an option with parts.
func (o *Option) list() string {
	var parts []string
	for _, p := range o.Parts {
		name, about := p.Name, p.Doc
		if p.Default != nil {
			name += "=" + p.Otherwise()
		} else if p.Derived != "" {
			about += "; default " + p.Derived
		}
		if p.Max > 0 && p.Max <= worthSaying {
			about += "; " + p.wants()
		}
		parts = append(parts, fmt.Sprintf("%s (%s)", name, about))
	}
	return "name=value, with commas between, of " + strings.Join(parts, ", ")
}

// field is what the option is called in a pool's header.
func (o *Option) field() string {
	if o.Field != "" {
		return o.Field
	}
	return strings.ReplaceAll(o.Name, "-", "_")
}
