//go:build !linux

package consultest

import "syscall"

// dieWithUs is empty here: the agent outlives a test that is killed.
var dieWithUs = &syscall.SysProcAttr{}
