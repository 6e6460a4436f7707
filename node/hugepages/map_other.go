//go:build !linux

package hugepages

import "log/slog"

// Map returns nil: huge pages are taken on Linux only.
func (Pool) Map(uint64, *slog.Logger) []byte { return nil }
