package version

import (
	"runtime/debug"
	"testing"
)

func TestCommit(t *testing.T) {
	const revision = "eed9e50b3c1f2a4d5e6f708192a3b4c5d6e7f809"
	set := func(all ...string) (s []debug.BuildSetting) {
		for i := 0; i < len(all); i += 2 {
			s = append(s, debug.BuildSetting{Key: all[i], Value: all[i+1]})
		}
		return s
	}
	for _, c := range []struct {
		settings []debug.BuildSetting
		want     string
	}{
		{nil, "unknown"},
		{set("vcs.modified", "true"), "unknown"},
		{set("vcs", "git", "vcs.revision", revision, "vcs.modified", "false"), "eed9e50b3c1f"},
		{set("vcs.modified", "true", "vcs.revision", revision), "eed9e50b3c1f+dirty"},
		{set("vcs.revision", "12ab"), "12ab"},
	} {
		if got := commitOf(&debug.BuildInfo{Settings: c.settings}); got != c.want {
			t.Errorf("commit of %v is %q, want %q", c.settings, got, c.want)
		}
	}
	if Commit() == "" {
		t.Error("the commit of this build is empty")
	}
}
