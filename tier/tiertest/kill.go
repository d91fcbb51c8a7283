package tiertest

import (
	"bufio"
	"os"
	"os/exec"
	"testing"
	"time"
)

// Kill runs the test binary as a child with the environment variable env, which makes it write to a
// tier forever. It kills the child a time of after after its first line of output. read receives
// the output after that line, and may be nil.
func Kill(t *testing.T, env string, after time.Duration, read func(out *bufio.Scanner)) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewScanner(pipe)
	if !out.Scan() { // it writes
		t.Error("the child says nothing", out.Err())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if read != nil {
			read(out)
		}
		for out.Scan() {
		}
	}()
	time.Sleep(after)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	<-done
	if err := cmd.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
}
