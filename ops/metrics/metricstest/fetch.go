// Package metricstest reads what a process under test exports.
package metricstest

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Fetch gets a page, over a connection of its own.
func Fetch(t *testing.T, url string) (status int, text string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	r, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// FarkvLines returns the lines of a page about metrics of farkv itself.
func FarkvLines(text string) string {
	var lines strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "farkv_") {
			lines.WriteString(line)
		}
	}
	return lines.String()
}
