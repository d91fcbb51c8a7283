package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// Wrong usage means exit code 2, wherever it is detected. A failed operation means exit code 1.
func TestDefectWrongUsageIsExitCode2(t *testing.T) {
	trace, dir := traceFile(t, goodLine), t.TempDir()
	file := trace
	replay := func(args ...string) []string { return append([]string{"replay", trace, "--device", "sim"}, args...) }
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"a bound of less than a block": {replay("--file-dir", dir, "--file-bytes", "1KiB"), exitUsage, "does not hold one block"},
		"a directory twice":            {replay("--file-dir", dir, "--file-dir", dir+"/"), exitUsage, "given twice"},
		"two names of a directory":     {replay("--file-dir", dir, "--file-dir", "/proc/self/root"+dir), exitUsage, ""},
		"a file as a directory":        {replay("--file-dir", file), exitUsage, "give a directory"},
		"below a file":                 {replay("--file-dir", filepath.Join(file, "x")), exitUsage, "a part of its path is a file"},
		"a path of files":              {replay("--path", "posix"), exitUsage, `--path: "posix" is not one of auto, copy-engine, kernel, staged`},
		"the paths there are":          {replay("--path", "posix"), exitUsage, "copy-engine, kernel"},
		"no path":                      {replay("--path", "none"), exitUsage, `--path: "none" is not one of auto, copy-engine, kernel, staged`},
		"an unknown path":              {replay("--path", "nope"), exitUsage, `--path: "nope" is not one of auto, copy-engine, kernel, staged`},
		"an unknown policy":            {replay("--policy", "x"), exitUsage, `--policy: "x" is not one of serving, throughput, latency, balanced, background`},
		"a path by NIC":                {replay("--path", "nic"), exitUsage, `--path: "nic" is not one of auto, copy-engine, kernel, staged`},
		"no file system":               {[]string{"doctor", "--dir", file + "x"}, exitUsage, "check the name"},
		"a device that is not there":   {replay("--device-index", "3"), exitFailure, "only device 0 exists"},
		"no trace":                     {[]string{"replay", trace + "x"}, exitFailure, "no such file"},
		"no directory":                 {[]string{"store", "ls", ""}, exitUsage, "no name is given"},
		"a directory that is not one":  {[]string{"store", "stat", t.TempDir()}, exitFailure, ""},
	} {
		code, _, stderr := execute(t, c.args...)
		if code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: exit code %d, want %d, and %q:\n%s", name, code, c.code, c.want, stderr)
		}
	}
}

// Absurd numbers are refused before the command allocates anything. The error names the limits.
func TestDefectAbsurdNumbersAreWrongUsage(t *testing.T) {
	const most, tibs = "9223372036854775807", "8000000TiB"
	replay := []string{"replay", traceFile(t, goodLine), "--device", "sim", "--file-dir", filepath.Join(t.TempDir(), "blocks")}
	soft := append(replay[:len(replay):len(replay)], "--gdr", "require", "--rdma-provider", "soft")
	bench := []string{"bench", "copy", "--device", "sim"}
	calibrate := []string{"calibrate", "--device", "sim", "--profile-dir", t.TempDir()}
	for _, c := range []struct {
		base, args []string
		want       string
	}{
		{replay, []string{"--concurrency", most}, "--concurrency " + most + ": must be at most 4096"},
		{replay, []string{"--pages", most}, "--pages " + most + ": must be at most 67108864"},
		{replay, []string{"--pages", "4294967297"}, "must be at most 67108864"},
		{replay, []string{"--cache-bytes", tibs}, "is more than 17592186044416"},
		{replay, []string{"--layers", most}, "between 1 and"},
		{replay, []string{"--head-size", most}, "between 1 and"},
		{replay, []string{"--tp", most}, "between 1 and"},
		{replay, []string{"--tp-rank", most}, "is not between"},
		{soft, []string{"--rdma-queue-pairs", most}, "is not 0 to 256"},
		{soft, []string{"--rdma-gid-index", most}, "0 to 255"},
		{soft, []string{"--rdma-port", most}, "1 to 255"},
		{soft, []string{"--rdma-mtu", most}, `"` + most + `" is not one of`},
		{bench, []string{"--reps", most}, "are more than 1048576"},
		{bench, []string{"--pool", tibs}, "are more than 8796093022208"},
		{bench, []string{"--bytes", tibs}, "are more than 8796093022208"},
		{bench, []string{"--large", tibs}, "are more than 8796093022208"},
		{bench, []string{"--sizes", tibs}, "is more than"},
		{bench, []string{"--counts", most}, "between 1 and 100000"},
		{bench, []string{"--compare", "/nonexistent", "--noise", "Inf"}, `"Inf"`},
		{calibrate, []string{"--memory", tibs}, "are not 0 to 8796093022208"},
	} {
		code, stdout, stderr := execute(t, append(c.base[:len(c.base):len(c.base)], c.args...)...)
		if code != exitUsage || !strings.Contains(stderr, c.want) || stdout != "" {
			t.Errorf("%v: exit code %d, want %q:\n%s", c.args, code, c.want, stderr)
		}
	}
}

// After an interrupt, Close of a command may continue for a short time only.
func TestDefectInterruptBoundsTheCloseOfACommand(t *testing.T) {
	for name, before := range map[string]bool{"interrupted before": true, "interrupted while it closes": false} {
		ctx, interrupt := context.WithCancel(t.Context())
		if before {
			interrupt()
		}
		c, cancel := closing(ctx, time.Hour, 30*time.Millisecond)
		if err := c.Err(); err != nil {
			t.Errorf("%s: nothing is left to close: %v", name, err)
		}
		interrupt()
		select {
		case <-c.Done():
		case <-time.After(testkit.Patience()):
			t.Errorf("%s: the context is still valid", name)
		}
		cancel()
		cancel()
	}
	c, cancel := closing(t.Context(), 10*time.Millisecond, time.Hour)
	<-c.Done()
	cancel()
}
