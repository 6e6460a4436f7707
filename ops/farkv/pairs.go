package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops"
)

func (c *cli) get() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:     "get [POOL] KEY",
		Short:   "Print the value of a key",
		Long:    "Get prints the value of a key. The exit status is 3 when the key is not there.",
		Example: "  farkv get paper\n  farkv get big image --raw > image.png",
		Args:    operands("KEY"),
		RunE: onPool(1, func(cmd *cobra.Command, pool string, rest []string) error {
			p, err := ops.Get(cmd.Context(), pool, []byte(rest[0]))
			if err == nil {
				p.Raw = raw
			}
			return answer(c, cmd, p, keyed(err))
		}),
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "the value alone, without a newline behind it")
	return cmd
}

// maxValue bounds what is read from standard input; no store keeps more in one pair.
const maxValue = 1 << 26

func (c *cli) put() *cobra.Command {
	return &cobra.Command{
		Use:     "put [POOL] KEY VALUE",
		Short:   "Set the value of a key",
		Long:    "Put sets the value of a key, whether it is there or not. VALUE - is read from standard input.",
		Example: "  farkv put paper FUSEE\n  farkv put big image - < image.png",
		Args:    operands("KEY VALUE"),
		RunE: onPool(2, func(cmd *cobra.Command, pool string, rest []string) error {
			value := []byte(rest[1])
			if rest[1] == "-" {
				var err error
				if value, err = io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxValue+1)); err != nil {
					return failure{fmt.Errorf("read the value from standard input: %w", err)}
				}
				if len(value) > maxValue {
					return fmt.Errorf("the value on standard input has more than %d bytes", maxValue)
				}
			}
			p, err := ops.Put(cmd.Context(), pool, []byte(rest[0]), value)
			return answer(c, cmd, p, err)
		}),
	}
}

func (c *cli) del() *cobra.Command {
	return &cobra.Command{
		Use:     "del [POOL] KEY",
		Short:   "Remove a key",
		Long:    "Del removes a key. The exit status is 3 when the key is not there.",
		Example: "  farkv del paper",
		Args:    operands("KEY"),
		RunE: onPool(1, func(cmd *cobra.Command, pool string, rest []string) error {
			p, err := ops.Del(cmd.Context(), pool, []byte(rest[0]))
			return answer(c, cmd, p, keyed(err))
		}),
	}
}
