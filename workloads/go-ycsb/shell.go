package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/ycsb"
)

func newShellCommand() *cobra.Command {
	f := new(flags)
	cmd := &cobra.Command{
		Use:     "shell DATABASE",
		Short:   "Read and write single records",
		Long:    "Shell reads commands from standard input, one a line.\n\n" + shellHelp,
		Example: "  go-ycsb shell fusee -p fieldcount=1\n  echo 'read user1' | go-ycsb shell fusee -P workloada",
		Args:    oneDatabase,
		RunE:    func(cmd *cobra.Command, args []string) error { return f.shell(cmd, args[0]) },
	}
	f.addCommon(cmd)
	return cmd
}

const shellHelp = `  read KEY [FIELD ...]             read a record
  scan KEY COUNT [FIELD ...]       read records from KEY on
  insert KEY FIELD=VALUE ...       add or replace a record
  update KEY FIELD=VALUE ...       change fields of a record
  delete KEY                       remove a record
  table [NAME]                     show or choose the table
  help, exit`

func (f *flags) shell(cmd *cobra.Command, name string) error {
	p, err := f.properties(cmd)
	if err != nil {
		return err
	}
	if p.GetInt64("recordcount", 0) == 0 { // it matters to workloads alone
		if err := ycsb.Set(p, "recordcount", "1"); err != nil {
			return err
		}
	}
	db, err := drivers.Create(name, p)
	if err != nil {
		return status(err)
	}
	s := &shell{db: db, table: p.GetString("table", "usertable"), out: cmd.OutOrStdout()}
	s.ctx = db.InitThread(cmd.Context(), 0, 1)
	err = s.loop(cmd.Context(), cmd.InOrStdin())
	db.CleanupThread(s.ctx)
	return status(errors.Join(err, db.Close()))
}

type shell struct {
	db     drivers.Database
	ctx    context.Context // of the thread, as upstream's drivers want it
	table  string
	out    io.Writer
	failed int
}

// loop runs commands until their end, exit or an interrupt.
func (s *shell) loop(ctx context.Context, in io.Reader) error {
	prompt := ""
	if file, ok := in.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			prompt = "> "
		}
	}
	lines := make(chan string)
	go func() { // may stay in a read until the process ends
		defer close(lines)
		for scan := bufio.NewScanner(in); scan.Scan(); {
			select {
			case lines <- scan.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		fmt.Fprint(s.out, prompt)
		select {
		case <-ctx.Done():
			return &failure{exitInterrupted, errors.New("interrupted")}
		case line, more := <-lines:
			words := strings.Fields(line)
			if !more || len(words) > 0 && words[0] == "exit" {
				if s.failed > 0 && prompt == "" {
					return fmt.Errorf("%d commands failed", s.failed)
				}
				return nil
			}
			if len(words) > 0 {
				s.run(words[0], words[1:])
			}
		}
	}
}

func (s *shell) run(command string, args []string) {
	least := map[string]int{"read": 1, "scan": 2, "insert": 2, "update": 2, "delete": 1, "table": 0, "help": 0}
	n, known := least[command]
	if !known || len(args) < n {
		s.failed++
		fmt.Fprintf(s.out, "%s: want\n%s\n", command, shellHelp)
		return
	}
	switch command {
	case "help":
		fmt.Fprintln(s.out, shellHelp)
		return
	case "table":
		if len(args) > 0 {
			s.table = args[0]
		}
		fmt.Fprintf(s.out, "Using table %s\n", s.table)
		return
	}
	key := args[0]
	rows, err := s.call(command, key, args[1:])
	title := strings.ToUpper(command[:1]) + command[1:]
	if err != nil {
		s.failed++
		fmt.Fprintf(s.out, "%s %s failed: %v\n", title, key, err)
		return
	}
	fmt.Fprintf(s.out, "%s %s ok\n", title, key)
	for i, row := range rows {
		if command == "scan" {
			fmt.Fprintf(s.out, "Record %d\n", i+1)
		}
		s.print(row)
	}
}

func (s *shell) call(command, key string, args []string) ([]map[string][]byte, error) {
	switch command {
	case "read":
		row, err := s.db.Read(s.ctx, s.table, key, args)
		if err == nil && len(row) == 0 {
			err = errors.New("no such record")
		}
		return []map[string][]byte{row}, err
	case "scan":
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no count", args[0])
		}
		return s.db.Scan(s.ctx, s.table, key, n, args[1:])
	case "delete":
		return nil, s.db.Delete(s.ctx, s.table, key)
	}
	values := make(map[string][]byte, len(args))
	for _, arg := range args {
		field, value, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not FIELD=VALUE", arg)
		}
		values[field] = []byte(value)
	}
	if command == "insert" {
		return nil, s.db.Insert(s.ctx, s.table, key, values)
	}
	return nil, s.db.Update(s.ctx, s.table, key, values)
}

func (s *shell) print(row map[string][]byte) {
	for _, name := range slices.Sorted(maps.Keys(row)) {
		fmt.Fprintf(s.out, "%s=%q\n", name, row[name])
	}
}
