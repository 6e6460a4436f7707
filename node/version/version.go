// Package version identifies this build: the commit that it was built from, and the versions of the
// protocols between programs and memory nodes. The formats of stores have versions of their own, in
// the headers of pools.
package version

import "runtime/debug"

const (
	// Wire is the version of the greeting and of the frames between programs and memory nodes. Two
	// ends can talk only if theirs are equal. Version 3 added Control to the greeting, version 4
	// messages, version 5 rings, version 6 messages between devices, and version 7 rings between
	// devices.
	Wire = 7
	// Control is the version of the messages that make and manage a pool: JSON in frames of the
	// wire. Two ends can talk only if theirs are equal. Version 2 lets processes without an
	// identity read, and registers telemetry; version 3 keeps a store's configuration; version 4
	// reads a view and the clients in one request; version 5 lists what has changed of them.
	Control = 5
)

// commitChars is how many characters of a revision Commit returns: as many as Go's pseudo-versions
// have.
const commitChars = 12

// Commit returns the revision that the program was built from, shortened to 12 characters, with
// "+dirty" appended if the tree had changes. It returns "unknown" if the build does not know, such
// as that of a test or one with -buildvcs=false.
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknown
	}
	return commitOf(info)
}

const unknown = "unknown"

func commitOf(info *debug.BuildInfo) string {
	revision, dirty := "", false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if revision == "" {
		return unknown
	}
	revision = revision[:min(len(revision), commitChars)]
	if dirty {
		revision += "+dirty"
	}
	return revision
}
