package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// startOf returns when a process started, in ticks since the boot. The error wraps os.ErrNotExist
// if the process is gone. A process that has ended and that its parent has not waited for counts as
// gone.
func startOf(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, syscall.ESRCH) { // it ended between open and read
		err = os.ErrNotExist
	}
	if err != nil {
		return 0, err
	}
	// The name is in parentheses and may contain anything. The state (field 3) and the start (field
	// 22) follow it.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat is not understood: %q", pid, text)
	}
	if state := fields[0][0]; state == 'Z' || state == 'X' {
		return 0, fmt.Errorf("process %d has ended: %w", pid, os.ErrNotExist)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

// bootID identifies the current boot. Ticks are counted from it.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}
