//go:build !linux

package consultest

import "syscall"

// dieWithUs cannot be asked for here: the agent outlives a test that is killed.
var dieWithUs = &syscall.SysProcAttr{}
