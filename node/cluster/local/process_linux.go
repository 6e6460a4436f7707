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
// when it is gone; one that has ended and waits for its parent is.
func startOf(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, syscall.ESRCH) { // it ended while it was read
		err = os.ErrNotExist
	}
	if err != nil {
		return 0, err
	}
	// The name, in brackets, may hold anything; behind it come the state, field 3, and the start,
	// field 22.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat is not understood: %q", pid, text)
	}
	if state := fields[0][0]; state == 'Z' || state == 'X' {
		return 0, fmt.Errorf("process %d has ended: %w", pid, os.ErrNotExist)
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}

// bootID names the present boot: ticks are counted anew with each.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}
