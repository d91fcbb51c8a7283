package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/replay"
)

// A replay that requires software NICs verifies every byte, and reports their path under a separate
// name.
func TestReplayByNICsInSoftware(t *testing.T) {
	trace := traceFile(t, goodLine+strings.Replace(goodLine, "[0, 1]", "[0, 1, 2]", 1))
	for _, extra := range [][]string{
		nil,
		{"--layerwise"},
		{"--verify", "always"},
		{"--nic", "soft0,soft1", "--rdma-queue-pairs", "2", "--rdma-port", "1", "--rdma-gid-index", "0", "--rdma-mtu", "2048"},
	} {
		args := small(append([]string{"replay", trace, "--json", "--gdr", "require", "--rdma-provider", "soft", "--file-dir", t.TempDir()}, extra...)...)
		code, stdout, stderr := execute(t, args...)
		var r replay.Report
		if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || stderr != "" {
			t.Fatalf("%v: exit code %d, %v, standard error %q", extra, code, err, stderr)
		}
		if r.Mismatches != 0 || r.BytesVerified == 0 || r.DumpedBlocks != 3 || len(r.Paths) != 2 {
			t.Errorf("%v: %+v", extra, r)
		}
		for _, p := range r.Paths {
			if p.Path != "nic-soft" || p.Bytes == 0 {
				t.Errorf("%v: %+v", extra, p)
			}
		}
	}
	if _, stdout, _ := execute(t, small("replay", trace, "--gdr", "require", "--rdma-provider", "soft")...); !strings.Contains(stdout, "\n  nic-soft  load ") {
		t.Errorf("the path is not in the table:\n%s", stdout)
	}
}

func TestReplayReportsWhyThereIsNoNIC(t *testing.T) {
	trace := traceFile(t, goodLine)
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"--gdr", "require", "--nic", "no-such-nic"}, exitFailure, []string{"gdr requires a NIC: "}},
		{[]string{"--gdr", "require", "--rdma-provider", "soft", "--nic", "no-such-nic"}, exitFailure, []string{`"no-such-nic"`, "soft0"}},
		{[]string{"--gdr", "auto", "--nic", "no-such-nic"}, exitOK, []string{"copies do not use a NIC: "}},
		{[]string{"--remote", "127.0.0.1:1", "--remote-rdma", "--nic", "no-such-nic"}, exitOK, []string{"blocks pass to block servers over sockets: "}},
		{[]string{"--remote", "127.0.0.1:1", "--remote-rdma", "--rdma-provider", "soft"}, exitOK, []string{"NICs in software reach no other process"}},
		{[]string{"--remote", "127.0.0.1:1", "--nic", "no-such-nic"}, exitUsage, []string{"--gdr auto, --gdr require or --remote-rdma"}},
		{[]string{"--gdr", "auto", "--rdma-provider", "soft"}, exitUsage, []string{"which only --gdr require takes"}},
		{
			[]string{"--gdr", "often", "--rdma-provider", "fpga", "--nic", "a,a", "--rdma-port", "-1", "--rdma-gid-index", "-7", "--rdma-mtu", "9000", "--rdma-queue-pairs", "-2"},
			exitUsage,
			[]string{`"often"`, `"fpga"`, `"a" is given twice`, "port -1", "GID index -7", `"9000"`, "-2"},
		},
	} {
		code, stdout, stderr := execute(t, small(append([]string{"replay", trace}, c.args...)...)...)
		if code != c.code {
			t.Errorf("%v: exit code %d, want %d", c.args, code, c.code)
		}
		for _, want := range c.want {
			if (c.code == exitOK) != strings.Contains(stdout, want) || (c.code != exitOK) != strings.Contains(stderr, want) {
				t.Errorf("%v: %q is missing or in the wrong place:\n%s%s", c.args, want, stdout, stderr)
			}
		}
		if strings.Contains(stdout, "\n  nic") {
			t.Errorf("%v: a NIC was used:\n%s", c.args, stdout)
		}
	}
}

// calibrate measures software NICs and reports them under a separate name. It does not choose a
// software NIC.
func TestCalibrateNICsInSoftware(t *testing.T) {
	args := []string{"calibrate", "--device", "sim", "--memory", "1MiB", "--budget", "20ms", "--profile-dir", t.TempDir(), "--rdma-provider", "soft"}
	code, stdout, stderr := execute(t, append(args, "--gdr", "require", "--full")...)
	if code != exitOK || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, want := range []string{"NIC soft soft0 ", "\n  nic-soft ", "Not stored"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the report lacks %q:\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "nic-soft/0") {
		t.Errorf("a NIC in software is chosen:\n%s", stdout)
	}
	code, stdout, stderr = execute(t, append(args, "--gdr", "auto", "--rdma-provider", "ibv", "--nic", "no-such-nic")...)
	if code != exitOK || !strings.Contains(stderr, "no NIC is measured: ") || strings.Contains(stdout, "nic") {
		t.Errorf("exit code %d, standard error %q:\n%s", code, stderr, stdout)
	}
}
