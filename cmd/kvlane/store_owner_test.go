package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier"
)

// ownerEnv makes a process of this test binary an engine that has a directory open. Its value is
// the name of a setting and a directory: "dirs DIR" or "log_dir DIR".
const ownerEnv = "KVLANE_TEST_OWNER"

// ownerBlocks is the number of blocks that an owner dumps at its start.
const ownerBlocks = 4

// ownerGeometry is the model of the owner's blocks.
var ownerGeometry = block.Geometry{Model: "owner", Layers: 1, KVHeads: 1, HeadSize: 64, DType: "bfloat16", BlockTokens: 16, TPSize: 1}

func ownerKey(n int) block.Key {
	return ownerGeometry.Identity("", "").Key([]byte{byte(n)})
}

// runOwner is main of an owner. It answers each line of its standard input, "lease N", "release" or
// "find N", with one line, and ends with the input.
func runOwner(what string) (err error) {
	ctx := context.Background()
	c := kvlane.Config{
		Model: ownerGeometry, Device: kvlane.DeviceConfig{Driver: kvlane.Sim},
		Stream: kvlane.StreamConfig{Calibration: profile.Never}, Store: kvlane.StoreConfig{CacheBytes: 1 << 20},
	}
	kind, dir, _ := strings.Cut(what, " ")
	if kind == "dirs" {
		c.Store.Dirs = []string{dir}
	} else {
		c.Store.LogDir = dir
	}
	e, err := kvlane.Open(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(ctx)) }()
	const pages = ownerBlocks
	plane := ownerGeometry.PlaneBytes()
	memory, err := e.Device().Alloc(2*pages*plane, device.AllocOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Device().Free(memory)) }()
	addr := memory.Dev()
	kv, err := e.RegisterCache(kvlane.CacheMemory{Planes: []mem.DevAddr{addr, addr + mem.DevAddr(pages*plane)}, Pages: pages})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kv.Close(ctx)) }()
	var refs []kvlane.Ref
	for n := range ownerBlocks {
		refs = append(refs, kvlane.Ref{Key: ownerKey(n), Page: uint32(n)})
	}
	t, err := e.Dump(ctx, kv, refs, kvlane.DumpOptions{})
	if err == nil {
		err = t.Durable(ctx)
	}
	if err != nil {
		return err
	}
	fmt.Println("ready", e.Notes())
	var lease *store.Lease
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		verb, arg, _ := strings.Cut(lines.Text(), " ")
		n, _ := strconv.Atoi(arg)
		key := []block.Key{ownerKey(n)}
		switch verb {
		case "lease":
			if lease, err = e.LeasePrefix(ctx, key, time.Hour); err != nil {
				return err
			}
			fmt.Println(lease.Len())
		case "release":
			lease.Release()
			fmt.Println("released")
		case "find":
			hits, err := e.Store().Lookup(ctx, key)
			if err != nil {
				return err
			}
			fmt.Println(hits[0].State == tier.Ready)
		}
	}
	return nil
}

// ownerProcess is a running owner.
type ownerProcess struct {
	*exec.Cmd
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
}

func startOwner(t *testing.T, kind, dir string) *ownerProcess {
	t.Helper()
	bin, err := os.Executable()
	must(t, err)
	o := &ownerProcess{Cmd: exec.Command(bin), t: t}
	o.Env = append(os.Environ(), ownerEnv+"="+kind+" "+dir)
	o.Stderr = os.Stderr
	o.in, err = o.StdinPipe()
	must(t, err)
	out, err := o.StdoutPipe()
	must(t, err)
	o.out = bufio.NewReader(out)
	must(t, o.Start())
	t.Cleanup(func() {
		_ = o.in.Close()
		if err := o.Wait(); o.ProcessState.Exited() && err != nil { // otherwise the test has killed it
			t.Errorf("the owner: %v", err)
		}
	})
	if line := o.line(); line != "ready []" {
		t.Fatalf("the owner starts with %q", line)
	}
	return o
}

func (o *ownerProcess) line() string {
	o.t.Helper()
	line, err := o.out.ReadString('\n')
	must(o.t, err)
	return strings.TrimSpace(line)
}

// do sends a line to the owner and returns its answer.
func (o *ownerProcess) do(format string, args ...any) string {
	o.t.Helper()
	_, err := fmt.Fprintf(o.in, format+"\n", args...)
	must(o.t, err)
	return o.line()
}

// eachOwner calls f with an owner of a directory of each kind.
func eachOwner(t *testing.T, f func(t *testing.T, o *ownerProcess, dir string, store func(want int, args ...string) (stdout, stderr string))) {
	for _, kind := range []string{"dirs", "log_dir"} {
		t.Run(kind, func(t *testing.T) {
			// The path of a socket in this directory would be too long.
			dir := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
			o := startOwner(t, kind, dir)
			f(t, o, dir, func(want int, args ...string) (stdout, stderr string) {
				t.Helper()
				code, stdout, stderr := execute(t, append([]string{"store"}, args...)...)
				if code != want {
					t.Errorf("store %v: exit code %d, want %d: %s%s", args, code, want, stdout, stderr)
				}
				return stdout, stderr
			})
		})
	}
}

// A process that has a directory open removes and pins blocks for commands. It sees its leases, and
// removes blocks from its memory too.
func TestCommandsAskTheOwner(t *testing.T) {
	eachOwner(t, func(t *testing.T, o *ownerProcess, dir string, store func(want int, args ...string) (stdout, stderr string)) {
		key := func(n int) string { return ownerKey(n).String() }
		if got := o.do("lease 0"); got != "1" {
			t.Fatalf("%s blocks are leased", got)
		}
		process := fmt.Sprintf("process %d (", o.Process.Pid)
		if stdout, stderr := store(exitFailure, "rm", dir, "--key", key(0), "--key", key(1)); !strings.Contains(stderr, process) || !strings.Contains(stderr, "in use") ||
			!strings.Contains(stdout, "blocks removed  1\n") {
			t.Errorf("rm of a leased block: %s%s", stdout, stderr)
		}
		for n, want := range []string{"true", "false", "true"} {
			if got := o.do("find %d", n); got != want {
				t.Errorf("the owner finds block %d: %s", n, got)
			}
		}
		o.do("release")
		for n, want := range []string{"the block is stored in tier cache", "the block was removed from tier "} {
			if stdout, _ := store(exitOK, "why", dir, "--key", key(n)); !strings.Contains(stdout, process) || !strings.Contains(stdout, want) {
				t.Errorf("why: %s; want %q", stdout, want)
			}
		}
		var w struct{ Owners []ownerWhy }
		stdout, _ := store(exitOK, "why", dir, "--key", key(0), "--key", key(1), "--json")
		if err := json.Unmarshal([]byte(stdout), &w); err != nil || len(w.Owners) != 1 || len(w.Owners[0].Blocks) != 2 {
			t.Errorf("why --json: %v, %s", err, stdout)
		}
		var p dirPinned
		stdout, _ = store(exitOK, "pin", dir, "--key", key(2), "--json")
		if err := json.Unmarshal([]byte(stdout), &p); err != nil || p.Changed != 1 || p.PinnedBlocks != 1 {
			t.Errorf("pin: %s", stdout)
		}
		if _, stderr := store(exitFailure, "rm", dir, "--key", key(2)); !strings.Contains(stderr, "kvlane store unpin") {
			t.Errorf("rm of a pinned block: %s", stderr)
		}
		stdout, _ = store(exitOK, "unpin", dir, "--key", key(2), "--json")
		if err := json.Unmarshal([]byte(stdout), &p); err != nil || p.Changed != 1 || p.PinnedBlocks != 0 {
			t.Errorf("unpin: %s", stdout)
		}
		var r dirRemoved
		stdout, _ = store(exitOK, "rm", dir, "--identity", ownerGeometry.Identity("", "").Digest().String(), "--json")
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || r.Removed != 3 || r.Bytes <= 0 {
			t.Errorf("rm --identity: %s", stdout)
		}
		if _, stderr := store(exitFailure, "rm", dir, "--key", key(0)); !strings.Contains(stderr, "no block with that key") {
			t.Errorf("rm of a removed block: %s", stderr)
		}
		for n := range ownerBlocks {
			if got := o.do("find %d", n); got != "false" {
				t.Errorf("the owner finds block %d: %s", n, got)
			}
		}
		store(exitOK, "verify", dir)
	})
}

// An owner that is stopped or killed does not hold up commands: without its answer they are refused
// in time, and after its death they take the lock. The next owner replaces its socket.
func TestCommandsOfADeadOwner(t *testing.T) {
	eachOwner(t, func(t *testing.T, o *ownerProcess, dir string, store func(want int, args ...string) (stdout, stderr string)) {
		key := ownerKey(0).String()
		must(t, o.Process.Kill())
		_ = o.Wait()
		if stdout, _ := store(exitOK, "rm", dir, "--key", key); !strings.Contains(stdout, "blocks removed  1\n") {
			t.Errorf("rm: %s", stdout)
		}
		store(exitOK, "verify", dir)
		kind := filepath.Base(t.Name())
		next := startOwner(t, kind, dir)
		if stdout, _ := store(exitOK, "rm", dir, "--key", key); !strings.Contains(stdout, "blocks removed  1\n") {
			t.Errorf("rm through the next owner: %s", stdout)
		}
		if got := next.do("find 0"); got != "false" {
			t.Errorf("the next owner finds the block: %s", got)
		}
	})
}

// Several processes may have a directory of files open. Each removes the block from its memory.
func TestCommandsAskAllOwners(t *testing.T) {
	dir := t.TempDir()
	owners := []*ownerProcess{startOwner(t, "dirs", dir), startOwner(t, "dirs", dir)}
	rm := func(want int) (stdout, stderr string) {
		t.Helper()
		code, stdout, stderr := execute(t, "store", "rm", dir, "--key", ownerKey(0).String())
		if code != want {
			t.Errorf("exit code %d, want %d: %s%s", code, want, stdout, stderr)
		}
		return stdout, stderr
	}
	if stdout, _ := rm(exitOK); !strings.Contains(stdout, "blocks removed  1\n") {
		t.Errorf("rm: %s", stdout)
	}
	for _, o := range owners {
		if got := o.do("find 0"); got != "false" {
			t.Errorf("process %d finds the block: %s", o.Process.Pid, got)
		}
	}
}

// A process of another user is refused, although the permissions of the socket allow it.
func TestOwnerRefusesOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		testkit.Skip(t, "root", "starting processes of other users needs root")
	}
	above, err := os.MkdirTemp("", "kvlane-owner") //nolint:usetesting // other users have no access to the test's own directory
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(above)) })
	dir := filepath.Join(above, "log")
	o := startOwner(t, "log_dir", dir)
	socket := filepath.Join(dir, "owner.sock")
	info, err := os.Stat(socket)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v", info.Mode())
	}
	for _, p := range []string{above, dir} {
		must(t, os.Chmod(p, 0o755)) //nolint:gosec // permissions that a careless user might set
	}
	must(t, os.Chmod(socket, 0o666)) //nolint:gosec // permissions that a careless user might set
	self, err := os.Open("/proc/self/exe")
	must(t, err)
	defer self.Close()
	cmd := exec.CommandContext(t.Context(), "/proc/self/fd/3")
	cmd.ExtraFiles, cmd.Dir = []*os.File{self}, "/"
	cmd.Env = append(os.Environ(), strangerEnv+"="+socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != "closed" {
		t.Errorf("another user's process: %v, %q", err, got)
	}
	if got := o.do("find 0"); got != "true" {
		t.Errorf("the owner finds the block: %s", got)
	}
}

// strangerEnv makes a process of this test binary ask the owner at a socket to remove a block. Its
// output is "closed" if the owner closes the connection without a reply.
const strangerEnv = "KVLANE_TEST_STRANGER"

func runStranger(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	key := ownerKey(0)
	if _, err := c.Write(append([]byte("kvo\x01\x01\x00\x00\x00\x01\x00\x00\x00"), key[:]...)); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	reply, err := io.ReadAll(c)
	if len(reply) > 0 {
		return fmt.Errorf("the owner replies %q: %w", reply, errdefs.ErrInvalid)
	}
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	_, err = fmt.Println("closed")
	return err
}
