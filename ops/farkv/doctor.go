package main

import (
	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/ops/doctor"
)

func (c *cli) doctor() *cobra.Command {
	d := doctor.Examination{Machine: doctor.ThisMachine()}
	memory := bytesFlag(1 << 30)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what this machine has, and what to install or set",
		Long: longText(`
Doctor looks at what farkv can use of this machine, and changes nothing:

  rdma        devices, ports, addresses (GIDs), path MTU, counters, kernel modules, permissions, libibverbs
  memlock     the limit of locked memory, since registering memory locks it
  hugepages   how many there are, of each size, and whether an rdma node of --memory finds enough
  shm         room for pools in shared memory
  pmem        persistent memory: namespaces, devices, file systems that map it directly
  ipmctl      the tool that reads what is written to its media
  consul      the agent at $CONSUL_HTTP_ADDR, and its leader
  machine     cores, NUMA nodes, Go, the kernel, its clock

Of each it says ok, warn (works, but), or missing (keeps farkv from using it), and behind -> what to do about it.
Pools in shared memory need shm alone, and those over TCP nothing of it. The exit status is 0 unless one of --require
is missing.`),
		Example: "  farkv doctor\n" +
			"  farkv doctor --require rdma,memlock --memory 64GiB\n" +
			"  farkv doctor -o json",
		Args: command.NoOperands("it looks at this machine"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			d.Memory = uint64(memory)
			h, err := d.Run(cmd.Context())
			return answer(c, cmd, h, err)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&d.Require, "require", nil, "what has to be there: some of these topics")
	f.Var(&memory, "memory", "bytes that a memory node is to serve")
	return cmd
}
