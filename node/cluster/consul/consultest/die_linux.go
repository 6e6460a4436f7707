package consultest

import "syscall"

// dieWithUs ends the agent when the test's process is killed.
var dieWithUs = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
