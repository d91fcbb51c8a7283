package main

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/internal/testkit"
)

// example configures how the test runs an example of a help text. small are extra arguments that
// keep the run short. want is the expected error if this machine or the simulated device lacks the
// hardware.
type example struct {
	small []string
	want  string // on standard error; set if the exit code is not 0
}

var (
	// noGPU is the advice of a command that needs a GPU and finds none.
	noGPU = "--device sim is a simulated GPU"

	smallCopy  = []string{"--device", "sim", "--bytes", "1MiB", "--pool", "4MiB", "--large", "1MiB", "--reps", "1"}
	smallStore = []string{"--device", "sim", "--still", "--bytes", "1MiB", "--large", "64KiB", "--budget", "1s"}
	smallFile  = []string{"--bytes", "16MiB", "--sizes", "4KiB", "--budget", "1s"}
)

// examples maps beginnings of command lines to their configuration; the longest match applies.
// Examples without a match run unchanged. TestTransferExamples runs those of transfers, which need
// a second process, TestDemo that of demo, TestBlockServersPage those of blockd, and TestRPCExamples
// those of RPC servers.
var examples = map[string]example{
	"replay":                              {small: []string{"--device", "sim", "--cache-bytes", "8MiB"}},
	"replay trace.jsonl --speed":          {small: []string{"--device", "sim", "--cache-bytes", "8MiB"}, want: "threshold missed: hit_rate"},
	"doctor --dir":                        {want: "required and not available"},
	"doctor --require":                    {want: "required and not available"},
	"calibrate --device":                  {want: noGPU},
	"bench copy --device":                 {small: smallCopy},
	"bench copy --out":                    {small: append(smallCopy, "--sizes", "4KiB")},
	"bench copy --compare":                {small: append(smallCopy, "--sizes", "4KiB"), want: "slower"},
	"bench copy --rdma":                   {small: append(smallCopy, "--sizes", "4KiB")},
	"bench store":                         {small: smallStore},
	"bench store --quick":                 {small: smallStore},
	"bench store --geometry":              {small: append(smallStore, "--bytes", "256MiB", "--budget", "3s"), want: "slower"},
	"bench file":                          {small: smallFile, want: "refuses O_DIRECT"},
	"bench file --dir /mnt/nvme --device": {want: noGPU},
	"bench blockio":                       {small: []string{"--duration", "2ms", "--rounds", "1"}},
	"cluster status etcd":                 {want: "etcd 127.0.0.1:2379"},
	"store rm /var/cache/kvlane --key":    {want: "no block with that key matches"},
	"store pin /var/cache/kvlane --key":   {want: "no block with that key matches"},
	"store unpin /var/cache/kvlane --key": {want: "no block with that key matches"},
	"cluster drain":                       {want: "etcd 127.0.0.1:2379"},
	"rpc bench":                           {small: []string{"--duration", "2ms", "--rounds", "1"}},
}

// Every command has examples, and all examples work.
func TestExamples(t *testing.T) {
	if testing.Short() {
		testkit.Skip(t, "examples", "every example is run, which takes a minute; not with -short")
	}
	t.Chdir(t.TempDir())
	temp := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", temp)
	must(t, os.WriteFile("trace.jsonl", []byte(goodLine), 0o600))
	must(t, os.WriteFile("prompt.txt", []byte(strings.Repeat("128000 9906\n", 10)), 0o600))
	rows, used := slices.Collect(maps.Keys(examples)), make(map[string]bool)
	var lines []string
	forEachCommand(func(path string, cmd *cobra.Command) {
		if cmd.Hidden {
			return
		}
		if cmd.Example == "" {
			t.Errorf("%s has no example", path)
		}
		for line := range strings.Lines(cmd.Example) {
			args, ok := strings.CutPrefix(strings.TrimSpace(line), "kvlane "+path)
			if !ok {
				t.Errorf("%s: %q is no example of it", path, line)
			}
			lines = append(lines, path+args)
		}
	})
	// Run replay first, because the other examples use its blocks, and store gc last.
	slices.SortStableFunc(lines, func(a, b string) int {
		order := []string{"store gc", "", "replay"}
		return cmp.Compare(beginOf(b, order), beginOf(a, order))
	})
	for _, line := range lines {
		if strings.HasPrefix(line, "transfer ") || strings.HasPrefix(line, "bench transfer ") || line == "demo" || strings.HasPrefix(line, "blockd ") ||
			strings.HasPrefix(line, "rpc serve ") || strings.Contains(line, "--addr ") {
			continue
		}
		var e example
		if at := beginOf(line, rows); at >= 0 {
			e, used[rows[at]] = examples[rows[at]], true
		}
		t.Run(line, func(t *testing.T) { runExample(t, temp, line, e) })
	}
	for row := range examples {
		if !used[row] {
			t.Errorf("no example begins with %q", row)
		}
	}
}

// beginOf returns the index of the longest of begins that is a prefix of line.
func beginOf(line string, begins []string) int {
	at := -1
	for i, begin := range begins {
		if strings.HasPrefix(line, begin) && (at < 0 || len(begin) > len(begins[at])) {
			at = i
		}
	}
	return at
}

func runExample(t *testing.T, temp, line string, e example) {
	t.Helper()
	args := words(strings.ReplaceAll(line, "'", `"`))
	for i, a := range args {
		if filepath.IsAbs(a) {
			args[i] = filepath.Join(temp, a)
			dir, file := args[i], "notes.txt" // which is foreign in a directory of blocks
			if strings.HasSuffix(a, ".yaml") {
				dir, file = filepath.Split(args[i])
			}
			err := os.MkdirAll(dir, 0o700)
			if strings.HasSuffix(a, ".yaml") || slices.Contains(args, "--remove") {
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, file), []byte("cache-bytes: 2GiB\n"), 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if e.want == noGPU {
		withoutGPU(t)
	}
	code, stdout, stderr := execute(t, append(args, e.small...)...)
	if code == exitOK && stdout == "" {
		t.Error("the example printed nothing")
	}
	if expected := e.want != "" && strings.Contains(stderr, e.want); code != exitOK && !expected || code == exitUsage {
		t.Errorf("exit code %d, %q", code, stderr)
	}
	if e.want == noGPU && code == exitOK {
		t.Error("the example succeeded without a GPU")
	}
	if _, err := cuda.Load(); err != nil && slices.Contains(args, "cuda") && e.want == "" { // without the driver the example reports that it is missing
		if code, _, stderr := execute(t, args...); code != exitFailure || !strings.Contains(stderr, noGPU) {
			t.Errorf("without a GPU: exit code %d, %q", code, stderr)
		}
	}
}
