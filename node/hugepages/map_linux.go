package hugepages

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// Map maps zeros in huge pages; nil: too few are free, which the log has, with what to set, where
// the machine is set up for huge pages. The kernel reserves the pages at once, so that no access
// fails later. The mapping has whole pages, and may be longer than so many bytes: the caller unmaps
// all of it.
func (p Pool) Map(bytes uint64, log *slog.Logger) []byte {
	m, err := unix.Mmap(-1, 0, int(p.Pages(bytes)*p.Size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_HUGETLB)
	if err != nil && p.Total > 0 {
		log.Warn("the memory is in ordinary pages", "needed huge pages", p.Pages(bytes), "free", p.Free,
			"bytes of each", p.Size, "error", err, "set", "sysctl "+p.Setting(bytes))
	}
	return m // nil after an error
}
