package local

import (
	"encoding/json"
	"fmt"
	"strings"
)

// reason is what the last line of a node's log says of why it ended: a node that answers in JSON
// fails in JSON, too, by an object with the member "error" and perhaps "hint".
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
