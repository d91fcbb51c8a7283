package share_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/share"
)

// nobody is the user id of an unprivileged user.
const nobody = 65534

// playStranger imports memory from an exporter of root, and prints the result.
func playStranger() error {
	line, err := bufio.NewReader(os.Stdin).ReadBytes('\n')
	if err != nil {
		return err
	}
	d, err := share.ParseDescriptor(line)
	if err != nil {
		return err
	}
	dev, err := sim.Open(sim.Options{Index: 1})
	if err != nil {
		return err
	}
	in, err := share.NewImporter(dev, share.ImportOptions{Allow: []int{0}})
	if err != nil {
		return err
	}
	i, err := in.Import(context.Background(), d)
	switch {
	case err == nil:
		_, err = fmt.Fprintln(os.Stdout, "imported")
		return errors.Join(err, i.Close(), in.Close(), dev.Close())
	case errors.Is(err, fs.ErrPermission):
		_, err = fmt.Fprintln(os.Stdout, "refused")
	}
	return errors.Join(err, in.Close(), dev.Close())
}

// asNobody imports d in a process of an unprivileged user, and returns its output.
func asNobody(t *testing.T, d share.Descriptor) string {
	t.Helper()
	self, err := os.Open("/proc/self/exe")
	must(t, err)
	defer func() { must(t, self.Close()) }()
	text, err := json.Marshal(d)
	must(t, err)
	// Other users may have no access to the directories above the file.
	cmd := exec.CommandContext(t.Context(), "/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Env = append(os.Environ(), roleEnv+"=stranger")
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(string(text) + "\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("the process of another user: %v: %s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// TestRequirement2ASecondUser checks that a process of another user cannot reach the socket. If the
// directories permit access, it is refused by its credentials.
func TestRequirement2ASecondUser(t *testing.T) {
	if os.Geteuid() != 0 {
		testkit.Skip(t, "root", "starting processes of other users needs root")
	}
	above, err := os.MkdirTemp("", "kvlane-users") //nolint:usetesting // other users have no access to the test's own directory
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(above)) })
	must(t, os.Chmod(above, 0o755)) //nolint:gosec // other users may reach the directory of the server
	dev := simDevice(t, sim.Options{})
	for _, c := range []struct {
		name          string
		allow         []int
		open          bool
		want          string
		denied, taken int64
	}{
		{"as it is", nil, false, "refused", 0, 0},
		{"opened", nil, true, "refused", 1, 0},
		{"allowed", []int{0, nobody}, true, "imported", 0, 1},
	} {
		s := serve(t, share.Options{Dir: filepath.Join(above, strings.ReplaceAll(c.name, " ", "-")), Allow: c.allow})
		e, _ := exported(t, s, dev, 4096)
		if c.open {
			must(t, os.Chmod(filepath.Dir(s.Socket()), 0o755)) //nolint:gosec // permissions that a careless user might set
			must(t, os.Chmod(s.Socket(), 0o666))               //nolint:gosec // permissions that a careless user might set
		}
		if got := asNobody(t, e.Descriptor()); got != c.want {
			t.Errorf("%s: another user's process: %q, want %q", c.name, got, c.want)
		}
		until(t, c.name+": the import is not counted", func() bool { return s.Stats().Denied == c.denied && s.Stats().Imports == c.taken })
	}
}
