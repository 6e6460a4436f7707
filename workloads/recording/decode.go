package recording

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode"

	"github.com/farkv/farkv/node/telemetry"
)

// decode reads a sample. Its lists are counted before they are read: three bytes of JSON can be
// kilobytes of memory.
func decode(line []byte) (*telemetry.Sample, error) {
	type plain telemetry.Sample
	var lists struct {
		*plain
		Nodes     []json.RawMessage `json:"nodes"`
		Clients   []json.RawMessage `json:"clients"`
		Processes []json.RawMessage `json:"processes"`
		Fill      []json.RawMessage `json:"fill"`
		Memory    []json.RawMessage `json:"memory"`
		Events    []json.RawMessage `json:"events"`
	}
	s := new(telemetry.Sample)
	lists.plain = (*plain)(s)
	err := json.Unmarshal(line, &lists)
	for _, read := range []func() error{
		func() error { return list(&s.Nodes, "nodes", lists.Nodes, maxNodes) },
		func() error { return list(&s.Clients, "clients", lists.Clients, maxOthers) },
		func() error { return list(&s.Processes, "processes", lists.Processes, maxTold) },
		func() error { return list(&s.Fill, "parts", lists.Fill, maxOthers) },
		func() error { return list(&s.Memory, "purposes", lists.Memory, maxOthers) },
		func() error { return list(&s.Events, "events", lists.Events, maxOthers) },
	} {
		if err == nil {
			err = read()
		}
	}
	if err != nil {
		return nil, err
	}
	clean(s)
	return s, nil
}

// list reads the elements of a list into to, unless there are more than most.
func list[T any](to *[]T, what string, elements []json.RawMessage, most int) error {
	if len(elements) > most {
		return fmt.Errorf("%d %s; there are %d at most", len(elements), what, most)
	}
	if elements != nil {
		*to = make([]T, len(elements))
	}
	for i, text := range elements {
		if err := json.Unmarshal(text, &(*to)[i]); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return nil
}

// clean tidies all texts of what v points to.
func clean(v any) { cleanValue(reflect.ValueOf(v)) }

func cleanValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			cleanValue(v.Elem())
		}
	case reflect.String:
		v.SetString(tidy(v.String()))
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			cleanValue(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				cleanValue(v.Field(i))
			}
		}
	}
}

// tidy returns a text that a terminal shows as it is: without control characters, not longer than
// it may be.
func tidy(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return -1
		}
		return r
	}, s)
}
