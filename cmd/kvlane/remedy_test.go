package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/blockhost"
)

// Every error names the next step.
func TestDefectErrorsHaveANextStep(t *testing.T) {
	withoutGPU(t)
	trace, dir := traceFile(t, goodLine), t.TempDir()
	files, logs := filepath.Join(dir, "files"), filepath.Join(dir, "logs")
	for _, made := range [][]string{{"--file-dir", files}, {"--log-dir", logs}} {
		if code, _, stderr := execute(t, small(append([]string{"replay", trace}, made...)...)...); code != exitOK {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := taken.Close(); err != nil {
			t.Error(err)
		}
	}()
	empty := t.TempDir() // without a folder of blocks
	blockd := t.TempDir()
	unlock, err := blockhost.LockRoot(blockd, "a test")
	must(t, err)
	must(t, unlock())
	none := filepath.Join(dir, "no such", "place")
	replay := "replay " + trace + " --device sim --cache-bytes 4MiB "
	for args, want := range map[string]string{
		// Misspelled words.
		"replay x --device sin":                         "did you mean sim?",
		"replay x --preset llama-3.1-8bb":               "Did you mean --preset llama-3.1-8b?",
		"replay x --dtype bfloat61":                     "Did you mean --dtype bfloat16?",
		"replay x --path kernle":                        "did you mean kernel?",
		"replay x --policy serve":                       "throughput, latency, balanced, background",
		"replay x --cahce-bytes 1":                      "did you mean --cache-bytes?",
		"bench copy --device sim --paths kernel,stagde": "Did you mean --paths staged?",
		"doctor --require cuad":                         "Did you mean --require cuda?",
		"transfer ls a:1 --protocol moonkake":           "Did you mean --protocol mooncake?",
		"config show replya":                            "did you mean replay?",
		// Devices.
		"bench copy":                         "Next: kvlane doctor has details; --device sim is a simulated GPU",
		"replay " + trace + " --device cuda": "Next: kvlane doctor has details; --device sim is a simulated GPU",
		replay + "--device-index 3":          "Next: kvlane doctor lists the devices; indices start at 0.",
		// Directories and files.
		replay + "--file-dir " + logs:                                         "Next: " + logs + " is a log: give it by --log-dir.",
		replay + "--log-dir " + files:                                         "Next: " + files + " is a directory of files: give it by --file-dir.",
		replay + "--kv-heads 2 --file-dir " + files:                           "give --kv-heads=1 for that",
		replay + "--file-read-only --file-dir " + none:                        "Next: check the name: a read-only directory must exist.",
		"replay " + none + " --device sim":                                    "Next: check the name; - is standard input",
		"store ls " + empty:                                                   "has made, or the directory above such folders: check DIR.",
		"store ls " + blockd:                                                  "Next: " + blockd + " is the directory of a block server: give the directory of a tenant in it.",
		"store stat " + empty:                                                 "Next: kvlane store reads a directory that kvlane replay --file-dir",
		"store gc --max-bytes 0 " + empty:                                     "Next: kvlane store reads a directory that kvlane replay --file-dir",
		"store verify --repair " + empty:                                      ": check DIR.",
		"store gc --quarantine " + none:                                       "Next: kvlane store reads a directory that kvlane replay --file-dir",
		"bench file --dir " + none:                                            "Next: create it: mkdir -p '" + none + "'",
		"bench file --dir /proc/1/x/y":                                        "Next: directories cannot be created in a kernel file system: give one elsewhere",
		"demo --dir " + none:                                                  "Next: create it: mkdir -p '" + none + "'",
		"topo --svg " + none:                                                  "Next: create its folder: mkdir -p '" + filepath.Dir(none) + "'",
		"bench copy --from " + none:                                           "Next: check the name that --from gives.",
		replay + "--pipeline remote --remote 127.0.0.1:1 --remote-ca " + none: "Next: check the name that --remote-ca gives.",
		"bench copy --device sim --out " + none:                               "Next: create its folder: mkdir -p '" + filepath.Dir(none) + "'",
		// Addresses.
		replay + "--metrics-addr " + taken.Addr().String(): "Next: another process listens at this address",
		replay + "--metrics-addr 192.0.2.1:0":              "Next: this host does not have this address",
		replay + "--metrics-addr 127.0.0.1:port":           "See 'kvlane replay --help'.",
		"transfer probe 127.0.0.1:1":                       "Next: no process listens there: start kvlane transfer serve --name HOST:PORT",
	} {
		words := strings.Fields(strings.ReplaceAll(args, none, "NONE"))
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "NONE", none)
		}
		if code, _, stderr := execute(t, words...); code == exitOK || strings.Count(stderr, want) != 1 {
			t.Errorf("%v: exit code %d, want %q once:\n%s", words, code, want, stderr)
		}
	}
}

// Errors that this test cannot cause on every machine, such as those about files of other users and
// other machines.
func TestNextStepByError(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/home/me/.cache")
	within := filepath.Join(t.TempDir(), "no such", "place")
	me := userName(uint32(os.Getuid()))
	for what, c := range map[string]struct {
		command string
		err     error
		want    string
	}{
		"another's directory":    {"replay", &fs.PathError{Op: "mkdir", Path: within, Err: syscall.EACCES}, filepath.Dir(filepath.Dir(within)) + " belongs to " + me + ": run the command as a user with permission, or give a directory of your own, such as /home/me/.cache/kvlane."},
		"another's, of store":    {"store gc", &fs.PathError{Op: "open", Path: "/", Err: syscall.EPERM}, "/ belongs to root: run the command as a user with permission."},
		"no file":                {"replay", syscall.EACCES, "run the command as a user with permission, or as root."},
		"a read-only mount":      {"replay", &fs.PathError{Op: "mkdir", Path: "/", Err: syscall.EROFS}, "the file system of / is mounted read-only: give a directory elsewhere, or --file-read-only to serve loads from it."},
		"a full disk":            {"replay", errdefs.ErrNoSpace, "free space there: kvlane store gc DIR --max-bytes SIZE"},
		"blocks in use":          {"store rm", errdefs.ErrBusy, "stop the process that has the directory open, or"},
		"a log that is in use":   {"store verify", errdefs.ErrBusy, "one process may open a log: stop the other one, then"},
		"a carried remedy":       {"replay", errdefs.WithRemedy(errdefs.ErrNoMemory, "make the cache smaller"), "make the cache smaller."},
		"a NIC of no name":       {"bench copy", fmt.Errorf("open NICs: %w", errdefs.ErrNotFound), ""},
		"a damaged kvlane.json":  {"store ls", errdefs.ErrCorrupt, "kvlane store verify DIR reports the damage, and with --repair"},
		"etcd is down":           {"cluster status", context.DeadlineExceeded, "check that etcd listens at these addresses, and --etcd-ca if it uses TLS."},
		"members without a name": {"cluster status", &net.DNSError{}, "give a name that this host can resolve; dns+srv://_SERVICE._PROTOCOL.DOMAIN needs SRV records."},
		"nothing is known":       {"replay", errdefs.ErrCorrupt, ""},
		"a GPU that is in use":   {"calibrate", errdefs.ErrBusy, ""},
	} {
		cmd, _, err := newRootCommand().Find(strings.Fields(c.command))
		if err != nil {
			t.Fatal(err)
		}
		got := nextStep(cmd, fmt.Errorf("wrapped: %w", c.err))
		if !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	if got := userName(4294967294); got != "user 4294967294" {
		t.Errorf("a user without a name: %q", got)
	}
}

// A file name with control characters neither adds a line to an error nor reaches the terminal.
// Joined errors have one line each.
func TestDefectNameOfAFileForgesALineOfAnError(t *testing.T) {
	bad, escaped := unprintable(t)
	dir := filepath.Join(t.TempDir(), bad)
	file := filepath.Join(t.TempDir(), "it's"+bad)
	good := filepath.Join(t.TempDir(), bad)
	if err := errors.Join(os.WriteFile(file, []byte("nonsense: 1\nmore: 2\n"), 0o600), os.WriteFile(good, []byte("path: kernel\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  []string
		lines int
		want  string
	}{
		{[]string{"replay", bad, "--device", "sim"}, 2, escaped},
		{[]string{"store", "ls", dir}, 2, escaped},
		{[]string{"doctor", "--dir", dir}, 2, escaped},
		{[]string{"store", "gc", dir, "--quarantine"}, 2, escaped},
		{[]string{"config", "check", file}, 3, escaped + ":2: "},
		{[]string{"replay", "x", "--policy", "latency", "--config", good}, 3, escaped + ":1."},
		{[]string{"store", bad}, 2, escaped},
		{[]string{"replay", "x", "--log-bytes", "1", "--fsync", "file"}, 3, "--log-bytes has no effect"},
	} {
		code, _, stderr := execute(t, c.args...)
		if code == exitOK || strings.Count(stderr, "\n") != c.lines || !strings.Contains(stderr, c.want) || strings.ContainsFunc(stderr, func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }) {
			t.Errorf("%q: exit code %d, want %d lines:\n%s\n%q", c.args, code, c.lines, stderr, stderr)
		}
	}
	joined := errors.Join(errors.New("one\nmore"), fmt.Errorf("%q: %w: %w", "two", errors.Join(errors.New("a"), errors.New("b")), errors.New("c\rd")))
	if got, want := errorText(fmt.Errorf("all: %w", joined)), "all: one\\nmore\n\"two\": a\nb: c\\rd"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// unprintable returns a file name with unprintable characters, and its form in errors. If the file
// system accepts only UTF-8, the name is valid UTF-8.
func unprintable(t *testing.T) (name, escaped string) {
	t.Helper()
	name, escaped = "no\nkvlane: all is well\x1b[2J\u202e", `no\nkvlane: all is well\x1b[2J\u202e`
	err := os.Mkdir(filepath.Join(t.TempDir(), name+"\xff"), 0o700)
	if errors.Is(err, syscall.EILSEQ) || errors.Is(err, syscall.EINVAL) {
		return name, escaped
	}
	return name + "\xff", escaped + `\xff`
}

// typesInBash checks that words are printable, and that bash parses them as want in the C locale
// and in C.UTF-8.
func typesInBash(t *testing.T, words string, want ...string) {
	t.Helper()
	if strings.ContainsFunc(words, func(r rune) bool { return !strconv.IsPrint(r) }) {
		t.Errorf("%q does not print", words)
	}
	for _, locale := range []string{"C", "C.UTF-8"} {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", `printf '%s\0' `+words)
		cmd.Env = append(os.Environ(), "LC_ALL="+locale)
		if out, err := cmd.Output(); err != nil || string(out) != strings.Join(want, "\x00")+"\x00" {
			t.Errorf("LC_ALL=%s: bash has %q of %s, want %q, %v", locale, out, words, want, err)
		}
	}
}

// A shell parses a suggested word as the intended name, even in a locale without the name's
// characters.
func TestDefectQuotedNameIsAnotherInTheCLocale(t *testing.T) {
	for _, name := range []string{
		"", "-", "~", "a b", `'\`, "\t\\n'", "é\x7f", "it's\nno\x1b[2J\u202e\xff", "\u202eabc", "\u00a0\u00a01", "\x017", "\xfff", "\u2028\U000e0001", "\ufffd\x01'",
	} {
		typesInBash(t, shellWord(name), name)
	}
}
