package format

import "unicode/utf8"

// AddText adds what is a text where it is UTF-8, and otherwise base64 under a name that says so.
func AddText(m map[string]any, name string, b []byte) {
	if utf8.Valid(b) {
		m[name] = string(b)
	} else {
		m[name+"_base64"] = b
	}
}
