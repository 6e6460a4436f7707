// Package hugepages reads the kernel's pool of huge pages, and maps memory in them. An RDMA device
// needs fewer translations of addresses for such memory.
package hugepages

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
)

// Pool is the kernel's pool of huge pages of its default size, the only ones that Map takes.
type Pool struct {
	Size  uint64 // bytes of a page
	Total uint64 // pages
	Free  uint64 // of them, that are neither in use nor reserved by a mapping
}

// Read reads the pool of the machine with this file system. Where the system does not tell, no
// pages are there, of the default size of amd64 and arm64.
func Read(root fs.FS) Pool {
	p, reserved := Pool{Size: 2 << 20}, uint64(0)
	text, _ := fs.ReadFile(root, "proc/meminfo")
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var name string
		var n uint64
		if _, err := fmt.Sscan(lines.Text(), &name, &n); err != nil {
			continue
		}
		switch name {
		case "HugePages_Total:":
			p.Total = n
		case "HugePages_Free:":
			p.Free = n
		case "HugePages_Rsvd:": // the kernel counts them as free, too
			reserved = n
		case "Hugepagesize:":
			p.Size = max(n, 1) << 10
		}
	}
	p.Free -= min(reserved, p.Free)
	return p
}

// Pages returns how many pages a mapping of so many bytes takes.
func (p Pool) Pages(bytes uint64) uint64 { return (bytes + p.Size - 1) / p.Size }

// Setting returns the kernel's setting, as sysctl takes it, by which the pool has room for another
// mapping of so many bytes.
func (p Pool) Setting(bytes uint64) string {
	return fmt.Sprintf("vm.nr_hugepages=%d", p.Total-min(p.Free, p.Total)+p.Pages(bytes))
}
