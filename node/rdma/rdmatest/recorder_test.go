package rdmatest_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// recorder is a testing.TB that is expected to fail.
type recorder struct {
	testing.TB
	messages []string
	failed   bool
	cleanups []func()
}

func (r *recorder) Helper()                     {}
func (r *recorder) Name() string                { return "recorder" }
func (r *recorder) Fail()                       { r.failed = true }
func (r *recorder) Failed() bool                { return r.failed }
func (r *recorder) FailNow()                    { r.Fail(); runtime.Goexit() }
func (r *recorder) Log(args ...any)             { r.messages = append(r.messages, fmt.Sprint(args...)) }
func (r *recorder) Logf(f string, args ...any)  { r.Log(fmt.Sprintf(f, args...)) }
func (r *recorder) Error(args ...any)           { r.Log(args...); r.Fail() }
func (r *recorder) Errorf(f string, a ...any)   { r.Error(fmt.Sprintf(f, a...)) }
func (r *recorder) Fatal(args ...any)           { r.Log(args...); r.FailNow() }
func (r *recorder) Fatalf(f string, a ...any)   { r.Fatal(fmt.Sprintf(f, a...)) }
func (r *recorder) SkipNow()                    { runtime.Goexit() }
func (r *recorder) Skip(args ...any)            { r.Log(args...); r.SkipNow() }
func (r *recorder) Skipf(f string, args ...any) { r.Skip(fmt.Sprintf(f, args...)) }
func (r *recorder) Cleanup(f func())            { r.cleanups = append(r.cleanups, f) }

// record runs a test that may fail, and returns whether it did and what it said.
func record(test func(testing.TB)) (failed bool, said string) {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for i := len(r.cleanups) - 1; i >= 0; i-- {
				r.cleanups[i]()
			}
		}()
		test(r)
	}()
	<-done
	return r.failed, strings.Join(r.messages, "\n")
}
