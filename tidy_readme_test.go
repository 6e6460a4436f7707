package farkv_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestReadme builds the programs as README says, runs the commands of its console blocks in their
// order, and compares what they print with what README shows: words and small numbers as they are,
// measured numbers by their places alone. What runs in virtual time is compared to the byte. Of all
// other commands, in every page, it compares commands, flags and properties with the programs'
// help.
func TestReadme(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("pools that processes share need Linux")
	}
	pages, err := readPages(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	s := newShell(t)
	for _, b := range blocks(pages["README.md"]) {
		switch b.kind {
		case "go":
			if err := os.WriteFile(filepath.Join(s.work, "main.go"), []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
		case "console":
			for _, c := range sessions(b.text) {
				got := s.run(t, c.command)
				if exact := strings.HasPrefix(c.command, "farkv report") ||
					strings.HasPrefix(c.command, "farkv sim"); !shows(c.output, got, exact) {
					t.Fatalf("%s prints\n%s\nand README says\n%s", c.command, got, c.output)
				}
			}
		}
	}
	for _, p := range slices.Sorted(maps.Keys(pages)) {
		for _, b := range blocks(pages[p]) {
			for _, c := range commands(b) {
				s.explained(t, p, c)
			}
		}
	}
}

// block is code of a page: fenced, of the kind that follows the fence, indented, or a span of a
// line.
type block struct{ kind, text string }

var codeSpan = regexp.MustCompile("`([^`]+)`")

func blocks(page string) (all []block) {
	fenced, open := block{}, false
	for line := range strings.Lines(page) {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && open:
			all, open = append(all, fenced), false
		case isFence:
			fenced, open = block{kind: strings.TrimSpace(fence)}, true
		case open:
			fenced.text += line
		case strings.HasPrefix(line, "    "):
			all = append(all, block{"indented", strings.TrimSpace(line)})
		default:
			for _, span := range codeSpan.FindAllStringSubmatch(line, -1) {
				all = append(all, block{"span", span[1]})
			}
		}
	}
	return all
}

// session is a command and what it prints.
type session struct{ command, output string }

func sessions(text string) (all []session) {
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			all = append(all, session{command: strings.TrimSpace(command)})
		} else {
			all[len(all)-1].output += line
		}
	}
	return all
}

// shell runs README's commands at the root of the module, with programs, pools and nodes in a
// folder of its own.
type shell struct {
	work    string
	env     []string
	exports string // lines that later commands need
	help    map[string]string
}

func newShell(t *testing.T) *shell {
	s := &shell{work: t.TempDir(), help: map[string]string{}}
	s.env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "FARKV_") })
	s.env = append(s.env, "GOFLAGS=-buildvcs=false "+os.Getenv("GOFLAGS")) // the repository may belong to another user
	for name, folder := range map[string]string{"FARKV_SHM_DIR": "shm", "XDG_RUNTIME_DIR": "run", "TMPDIR": "tmp"} {
		if err := os.Mkdir(filepath.Join(s.work, folder), 0o700); err != nil {
			t.Fatal(err)
		}
		s.env = append(s.env, name+"="+filepath.Join(s.work, folder))
	}
	t.Cleanup(func() { // nodes that a failure leaves
		down := exec.Command(filepath.Join(s.work, "bin", "farkv"), "down", "mine", "--force")
		down.Env = s.env
		_ = down.Run()
	})
	return s
}

// run returns what a command prints, errors too, and wants it to succeed.
func (s *shell) run(t *testing.T, command string) string {
	t.Helper()
	command = strings.NewReplacer("-o bin/", "-o "+s.work+"/bin/", "$PWD/bin", s.work+"/bin", " main.go",
		" "+s.work+"/main.go").Replace(command)
	c := exec.Command("sh", "-c", s.exports+command)
	c.Env = s.env
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	if strings.HasPrefix(command, "export ") {
		s.exports += command + "\n"
	}
	return string(out)
}

var (
	// measured are numbers that differ between runs: of several digits, with a fraction or with a
	// unit, and epochs.
	measured = regexp.MustCompile(`epoch [0-9]+|[0-9][0-9.,]+( ?([nµum]?s|[KMG]?i?B)\b)?|[0-9] ?([nµum]?s|[KMG]?i?B)\b`)
	spaces   = regexp.MustCompile(`[ \t]+`)
)

// shows reports whether README's output is that of a command. There a line of ... stands for any
// lines, and ... in a line for any text.
func shows(want, got string, exact bool) bool {
	mask := func(text string) string {
		if exact {
			return text
		}
		return spaces.ReplaceAllString(measured.ReplaceAllString(text, "N"), " ")
	}
	var pattern strings.Builder
	for line := range strings.Lines(want) {
		if line == "...\n" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		for i, part := range strings.Split(line, "...") {
			if i > 0 {
				pattern.WriteString(".*")
			}
			pattern.WriteString(regexp.QuoteMeta(mask(part)))
		}
	}
	return regexp.MustCompile(`^` + pattern.String() + `$`).MatchString(mask(got))
}

var (
	// called finds a command of ours, with the words behind it that may be commands and topics.
	called = regexp.MustCompile(
		`^(?:\$ )?(?:[A-Z_]+=\S+ )*(?:bin/|go run \./ops/)?(farkv|go-ycsb)((?: [a-z-]+){0,2})`)
	flagName = regexp.MustCompile(`(?:^| )(--[a-z][a-z-]*)`)
	property = regexp.MustCompile(`-p ([a-z.]+)=`)
)

// invocation is a command of ours with its flags and properties, as a page has it.
type invocation struct {
	program    string
	words      []string // what may be commands
	flags      []string
	properties []string
}

func commands(b block) (all []invocation) {
	if b.kind == "go" {
		return nil
	}
	for line := range strings.Lines(strings.ReplaceAll(b.text, "\\\n", " ")) {
		line, _, _ = strings.Cut(line, " #")
		for _, part := range regexp.MustCompile(`&&|\||;`).Split(line, -1) {
			m := called.FindStringSubmatch(strings.TrimSpace(part))
			if m == nil {
				continue
			}
			c := invocation{program: m[1], words: strings.Fields(m[2])}
			for _, f := range flagName.FindAllStringSubmatch(part, -1) {
				c.flags = append(c.flags, f[1])
			}
			for _, p := range property.FindAllStringSubmatch(part, -1) {
				c.properties = append(c.properties, p[1])
			}
			all = append(all, c)
		}
	}
	return all
}

// explained compares what a page says with the help of the program.
func (s *shell) explained(t *testing.T, page string, c invocation) {
	t.Helper()
	if len(c.words) == 0 {
		return // the program's name
	}
	words := c.words[:1]
	switch c.words[0] {
	case "sim", "report":
		words = c.words
	case "help":
		words = c.words[1:] // a topic
	}
	text := s.helpOf(t, page, c.program, words)
	for _, f := range c.flags {
		// where flags are listed, not in examples
		if !regexp.MustCompile(`(?m)^ +(-\w, )?` + f + ` `).MatchString(text) {
			t.Errorf("%s: %s %s has no flag %s", page, c.program, strings.Join(words, " "), f)
		}
	}
	for _, p := range c.properties {
		known := s.helpOf(t, page, c.program, []string{"properties"}) +
			s.helpOf(t, page, c.program, []string{"fusee"}) +
			s.helpOf(t, page, c.program, []string{"rcuckoo"}) + s.helpOf(t, page, c.program, []string{"redis"})
		if !strings.Contains(known, "  "+p+" ") {
			t.Errorf("%s: %s has no property %s", page, c.program, p)
		}
	}
}

func (s *shell) helpOf(t *testing.T, page, program string, words []string) string {
	key := program + " help " + strings.Join(words, " ")
	if text, ok := s.help[key]; ok {
		return text
	}
	c := exec.Command(filepath.Join(s.work, "bin", program), append([]string{"help"}, words...)...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %s: %v\n%s", page, key, err, out)
	}
	s.help[key] = string(out)
	return string(out)
}
