package farkv_test

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	readmeWords = 2500
	pageColumns = 120
)

// explained are the folders that have a README of their own, beside the one of the module.
var explained = []string{
	"client", "client/dtx", "client/fusee", "client/rcuckoo", "client/rtx", "client/swarm", "node", "ops",
	"reports", "tui",
	"workloads", "workloads/check",
}

// readPages reads all Markdown below root.
func readPages(root fs.FS) (pages map[string]string, err error) {
	pages = map[string]string{}
	err = fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(p) != ".md" {
			return err
		}
		text, err := fs.ReadFile(root, p)
		pages[p] = string(text)
		return err
	})
	return pages, err
}

var pageLink = regexp.MustCompile(`\]\(([^)]+)\)`)

// readmes keeps the READMEs: how long the first one is, which folders have one, and that links lead
// somewhere.
func (h *codebase) readmes() {
	report := func(p, text string) { h.violations = append(h.violations, p+": "+text) }
	if first, ok := h.pages["README.md"]; !ok {
		return
	} else if len(strings.Fields(first)) > readmeWords {
		report("README.md", "more than 2500 words: move some to the README of a folder")
	}
	for _, dir := range explained {
		here := func(s *source) bool { return under(s.dir, dir) }
		if _, ok := h.pages[dir+"/README.md"]; !ok && slices.ContainsFunc(h.sources, here) {
			report(dir, "has no README.md")
		}
	}
	for p, text := range h.pages {
		for line := range strings.Lines(text) {
			prose := line != "" && !strings.ContainsAny(line[:1], " |`$")
			if prose && utf8.RuneCountInString(strings.TrimSpace(line)) > pageColumns {
				report(p, "a line of more than 120 columns: "+strings.TrimSpace(line))
			}
		}
		for _, link := range pageLink.FindAllStringSubmatch(text, -1) {
			h.link(p, link[1], report)
		}
	}
}

// link keeps a relative link to a page or a folder, and its anchor.
func (h *codebase) link(p, link string, report func(p, text string)) {
	if strings.Contains(link, "://") {
		return
	}
	target, anchor, hasAnchor := strings.Cut(link, "#")
	if target == "" {
		target = path.Base(p)
	}
	target = path.Join(path.Dir(p), target)
	if _, err := fs.Stat(h.root, target); err != nil {
		report(p, "a link to "+link+", which is not there")
		return
	}
	if hasAnchor && !slices.Contains(anchors(h.pages[target]), anchor) {
		report(p, "a link to "+link+", where there is no such heading")
	}
}

var notInAnchor = regexp.MustCompile(`[^a-z0-9 _-]`)

// anchors returns those of a page's headings.
func anchors(page string) (all []string) {
	for line := range strings.Lines(page) {
		if heading := strings.TrimLeft(line, "#"); heading != line && strings.HasPrefix(heading, " ") {
			text := notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			all = append(all, strings.ReplaceAll(text, " ", "-"))
		}
	}
	return all
}
