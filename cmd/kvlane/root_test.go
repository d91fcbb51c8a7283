package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// execute runs a command line in this process. If the budget of a benchmark is too short for a
// measurement, it runs the benchmark again with twice the budget.
func execute(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return grow(t, args, func(_, stderr string) bool {
		return strings.Contains(stderr, "was used up before the first measurement")
	})
}

// executeWhole is like execute, but increases the budget until nothing is left out.
func executeWhole(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return grow(t, args, func(stdout, stderr string) bool {
		return strings.Contains(stderr, "was used up before the first measurement") || strings.Contains(stderr, "is too short for all") ||
			strings.Contains(stdout, "did not fit the budget of") || strings.Contains(stdout, `"left_out"`)
	})
}

func grow(t *testing.T, args []string, short func(stdout, stderr string) bool) (code int, stdout, stderr string) {
	t.Helper()
	for {
		var out, errs bytes.Buffer
		code = run(t.Context(), args, &out, &errs)
		if !short(out.String(), errs.String()) {
			return code, out.String(), errs.String()
		}
		budget := time.Minute // if no budget was given
		for i, a := range args {
			if a == "--budget" { // the last one applies
				budget, _ = time.ParseDuration(args[i+1])
				budget *= 2
			}
		}
		if budget > time.Hour {
			t.Fatalf("exit code %d, standard error %q", code, errs.String())
		}
		t.Logf("again, with a larger budget: %s", errs.String())
		args = append(slices.Clone(args), "--budget", budget.String())
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"help", []string{"--help"}, exitOK, ""},
		{"no command", []string{}, exitOK, ""},
		{"version", []string{"--version"}, exitOK, ""},
		{"unknown command", []string{"replya"}, exitUsage, "did you mean replay?"},
		{"unknown command of a group", []string{"bench", "paste"}, exitUsage, `unknown command "paste" for "kvlane bench"`},
		{"unknown flag", []string{"doctor", "--nope"}, exitUsage, "unknown flag: --nope"},
		{"argument too many", []string{"doctor", "x"}, exitUsage, "See 'kvlane doctor --help'."},
		{"log level", []string{"--log-level", "loud", "doctor"}, exitUsage, "debug, info, warn and error"},
		{"log format", []string{"--log-format", "xml", "doctor"}, exitUsage, "text or json"},
		{"size", []string{"bench", "copy", "--sizes", "4KiB,huge"}, exitUsage, `"huge"`},
		{"path", []string{"bench", "copy", "--paths", "teleport"}, exitUsage, `"teleport"`},
		{"two forms of output", []string{"bench", "transfer", "--json", "--nixl"}, exitUsage, "none of the others can be"},
		{"repetitions", []string{"bench", "copy", "--reps", "0"}, exitUsage, "--reps 0"},
		{"device", []string{"bench", "copy", "--device", "tpu"}, exitUsage, `"tpu"`},
		{"device index", []string{"bench", "copy", "--device", "sim", "--device-index", "7"}, exitFailure, "7"},
		{"benchmark that does not fit", []string{"bench", "copy", "--device", "sim", "--pool", "1MiB", "--bytes", "2MiB"}, exitUsage, "do not fit the pool"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := execute(t, c.args...)
			if code != c.code || !strings.Contains(stderr, c.stderr) {
				t.Errorf("exit code %d, want %d; standard error, which should contain %q:\n%s", code, c.code, c.stderr, stderr)
			}
			if c.code == exitOK && stdout == "" {
				t.Error("the command printed nothing")
			}
			if c.code != exitOK && stdout != "" {
				t.Errorf("a failed command printed %q", stdout)
			}
		})
	}
}

func TestDoctorOfThisMachine(t *testing.T) {
	code, stdout, stderr := execute(t, "doctor", "--json", "--dir", t.TempDir())
	var r doctor.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || stderr != "" {
		t.Fatalf("exit code %d, %v, standard error %q", code, err, stderr)
	}
	if r.Host.CPUs < 1 || len(r.FileSystems) != 1 || len(r.Paths) == 0 {
		t.Errorf("report %+v", r)
	}
	// Without a driver no GPU path is available.
	for _, p := range r.Paths {
		if strings.Contains(p.What, "GPU,") && r.NVIDIA.Driver.Answer != doctor.Yes && p.Available.Answer == doctor.Yes {
			t.Errorf("path %s is available without a driver", p.Name)
		}
	}
}

func TestBenchCopyOnTheSimulatedDevice(t *testing.T) {
	args := []string{"bench", "copy", "--device", "sim", "--bytes", "64KiB", "--pool", "256KiB", "--large", "128KiB", "--sizes", "4KiB", "--reps", "1", "--paths", "kernel"}
	code, stdout, stderr := execute(t, append(args, "--json")...)
	var r bench.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v, standard error %q", code, err, stderr)
	}
	if len(r.Points) != 6 || !r.Machine.Simulated || r.Machine.Command == "" {
		t.Errorf("report %+v", r)
	}
	if code, stdout, _ := execute(t, args...); code != exitOK || !strings.HasPrefix(stdout, "✓ Every byte correct") || !strings.Contains(stdout, "! SIMULATED") {
		t.Errorf("exit code %d, text:\n%s", code, stdout)
	}
}

func TestCanceledCommandFails(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"bench", "copy", "--device", "sim"}, &out, &errs); code != exitFailure || errs.String() != "kvlane: interrupted: before the first measurement\n" {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
}

func TestUsageErrorKeepsItsCause(t *testing.T) {
	cause := errors.New("cause")
	if err := usagef("flag: %w", cause); !errors.Is(err, cause) || fmt.Sprint(err) != "flag: cause" {
		t.Error(err)
	}
}

// TestPolicyFlag checks that the default of --policy is serving, which leaves the choice to the
// engine, and that every goal has a name.
func TestPolicyFlag(t *testing.T) {
	for _, path := range []string{"replay", "bench store"} {
		cmd, _, err := newRootCommand().Find(strings.Fields(path))
		if err != nil || cmd.Flags().Lookup("policy").DefValue != "serving" {
			t.Errorf("%s: %v, and the default of --policy is %q", path, err, cmd.Flags().Lookup("policy").DefValue)
		}
	}
	for name, want := range map[string]plan.Goal{
		"serving": plan.Unset, "throughput": plan.Throughput, "latency": plan.Latency, "balanced": plan.Balanced, "background": plan.Background,
	} {
		e, err := flagsOf("--policy", name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := e.config(smallGeometry)
		if err != nil || c.Stream.Policy != (plan.Policy{Goal: want}) {
			t.Errorf("--policy %s: %+v, %v", name, c.Stream.Policy, err)
		}
	}
	for _, name := range []string{"unset", "", "speed"} {
		e, err := flagsOf("--policy", name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.config(smallGeometry); err == nil || !strings.Contains(err.Error(), "--policy") {
			t.Errorf("--policy %q: error %v, want one that names the flag", name, err)
		}
	}
}

// flagsOf returns an engine's flags parsed from args.
func flagsOf(args ...string) (*engineFlags, error) {
	var e engineFlags
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	e.register(flags)
	return &e, flags.Parse(args)
}
