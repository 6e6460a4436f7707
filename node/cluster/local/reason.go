package local

import (
	"encoding/json"
	"fmt"
	"strings"
)

// reason returns why a node ended, by the last line of its log. A node that reports in JSON fails
// with an object that has the member "error" and perhaps "hint".
func reason(line string) string {
	var failure struct{ Error, Hint string }
	switch {
	case !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &failure) != nil || failure.Error == "":
		return line
	case failure.Hint == "":
		return failure.Error
	}
	return fmt.Sprintf("%s (hint: %s)", failure.Error, failure.Hint)
}
