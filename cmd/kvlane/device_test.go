package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device/cuda"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/dl"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/replay"
)

func withoutGPU(t *testing.T) {
	t.Helper()
	if _, err := cuda.Load(); err == nil {
		testkit.Skip(t, "no GPU", "this machine has a GPU, which is used")
	}
}

// simulating is the first line of reports without a GPU.
const simulating = "! No NVIDIA driver found (libcuda.so.1). Using the simulated GPU; figures are not hardware.\n"

// Without a GPU, replay uses the simulated device and reports that first. TestDemo checks the same
// for demo.
func TestReplayReportsThatItSimulates(t *testing.T) {
	withoutGPU(t)
	const noted = "SIMULATED DEVICE: no GPU is usable: load CUDA driver: open library libcuda.so.1: "
	args := []string{"replay", traceFile(t, goodLine), "--cache-bytes", "1MiB"}
	code, stdout, stderr := execute(t, args...)
	if code != exitOK || !strings.HasPrefix(stdout, simulating) || strings.Count(stdout+stderr, "libcuda") != 1 {
		t.Errorf("exit code %d, %s\n%s", code, stderr, stdout)
	}
	code, stdout, stderr = execute(t, append(args, "--json")...)
	var r replay.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || len(r.Notes) == 0 || !strings.HasPrefix(r.Notes[0], noted) {
		t.Errorf("--json: exit code %d, %v, %s\n%s", code, err, stderr, stdout)
	}
}

// The reason for a missing GPU is reported as a full sentence.
func TestWhyThereIsNoGPU(t *testing.T) {
	lib := func(reason string) error {
		return fmt.Errorf("load CUDA driver: %w", &dl.MissingError{Names: []string{"libcuda.so.1"}, Reasons: []error{errors.New(reason)}})
	}
	for want, err := range map[string]error{
		"No NVIDIA driver found (libcuda.so.1).":                                          lib("libcuda.so.1: cannot open shared object file: No such file or directory"),
		"The NVIDIA driver cannot be loaded (libcuda.so.1: wrong ELF class: ELFCLASS32).": lib("libcuda.so.1: wrong ELF class: ELFCLASS32"),
		"No GPU is usable: load CUDA driver: the driver reports no GPU: not supported.":   fmt.Errorf("load CUDA driver: the driver reports no GPU: %w", errdefs.ErrNotSupported),
	} {
		if got := noDriver(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Measurements on the simulated device must not be mistaken for those of a GPU, so a command that
// measures requires its name. The error first names the missing part in plain words, not as a Go
// error.
func TestDefectMissingGPUIsReportedInGo(t *testing.T) {
	withoutGPU(t)
	const (
		wantNote = "kvlane: No NVIDIA driver found (libcuda.so.1).\nNext: kvlane doctor has details; --device sim is a simulated GPU, "
		cpu      = "host the CPU.\n"
		none     = "none the host.\n"
	)
	for line, other := range map[string]string{
		"bench copy":                                     cpu,
		"bench copy --device cuda":                       cpu,
		"bench store":                                    cpu,
		"calibrate --profile-dir " + t.TempDir():         cpu,
		"replay --device cuda " + traceFile(t, goodLine): cpu,
		"bench file --device cuda --dir " + t.TempDir():  none,
		"transfer serve --use-vram --name 127.0.0.1:0 --listen 127.0.0.1:0": cpu,
	} {
		code, stdout, stderr := execute(t, strings.Fields(line)...)
		if code != exitFailure || stdout != "" || stderr != wantNote+other {
			t.Errorf("%s: exit code %d\n%s\n%s", line, code, stdout, stderr)
		}
	}
	for _, args := range [][]string{{"bench", "copy"}, {"bench", "store"}, {"calibrate"}} {
		code, _, stderr := execute(t, append(args, "--device", "auto")...)
		if code != exitUsage {
			t.Errorf("%v --device auto: exit code %d\n%s", args, code, stderr)
		}
	}
}
