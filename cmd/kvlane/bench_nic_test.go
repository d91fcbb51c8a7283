package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/rdma"
)

// Software NICs are measured only if they are requested, and are reported separately.
func TestBenchCopyByNICsInSoftware(t *testing.T) {
	args := tinyBench("--json", "--rdma-provider", "soft", "--nic", "soft0,soft1", "--rdma-queue-pairs", "2")
	for i, a := range args {
		if a == "--paths" {
			args[i+1] = "auto,nic-soft,nic-soft-channel,nic,nic-channel"
		}
	}
	code, stdout, stderr := execute(t, args...)
	var r bench.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v, standard error %q", code, err, stderr)
	}
	if len(r.Points) != 4 || len(r.Soft) != 8 || len(r.Setup.NICs) != 2 || !strings.Contains(r.Setup.NICs[1], "soft1 (in software)") {
		t.Errorf("%d points, %d of NICs in software, NICs %q", len(r.Points), len(r.Soft), r.Setup.NICs)
	}
	for _, p := range r.Soft {
		if p.Path != "nic-soft" && p.Path != "nic-soft-channel" || p.GBps <= 0 || p.Path == "nic-soft" && p.Traveled != "nic-soft" {
			t.Errorf("point %+v", p)
		}
	}
	if len(r.Missing) != 2 || !strings.Contains(r.Missing[0].Reason, "without --rdma-provider soft") {
		t.Errorf("missing %+v", r.Missing)
	}
}

// Without a request for software NICs there are none, and the report names the missing NIC paths.
func TestBenchCopyWithoutNICs(t *testing.T) {
	code, stdout, stderr := execute(t, tinyBench("--json", "--paths", "auto,nic-soft,nic-soft-channel,nic,nic-channel")...)
	var r bench.Report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK {
		t.Fatalf("exit code %d, %v, standard error %q", code, err, stderr)
	}
	if len(r.Soft) != 0 || len(r.Missing) < 2 {
		t.Errorf("%d points of NICs in software, missing %+v", len(r.Soft), r.Missing)
	}
}

func TestBenchNICFlagsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"copy: provider":    {tinyBench("--rdma-provider", "fpga", "--paths", "nic"), exitUsage, []string{`"fpga"`}},
		"copy: no such NIC": {tinyBench("--rdma-provider", "soft", "--nic", "soft7", "--paths", "nic-soft"), exitFailure, []string{`"soft7"`, "soft0"}},
		"copy: named NIC":   {tinyBench("--nic", "no-such-nic", "--paths", "nic"), exitFailure, []string{"open NICs"}},
		"copy: port":        {tinyBench("--rdma-provider", "soft", "--rdma-port", "3", "--paths", "nic-soft"), exitUsage, []string{"port 3: must be 1 to 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := execute(t, c.args...)
			if code != c.code {
				t.Errorf("exit code %d, want %d; standard error %q", code, c.code, stderr)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q is not on standard error: %q", want, stderr)
				}
			}
		})
	}
}

// If a NIC or a driver returns an "invalid" error during a transfer, the command fails with exit
// code 1, not as wrong usage.
func TestDefectErrorOfANICIsWrongUsage(t *testing.T) {
	for name, err := range map[string]error{
		"call":    rdma.NewError("ibv_modify_qp", "qp=7", syscall.EINVAL, ""),
		"posting": rdma.NewPostError("ibv_post_send", "", syscall.EINVAL, ""),
		"request": &rdma.WCError{Status: rdma.WCRemAccessErr},
		"driver":  &device.Error{Call: "cuMemcpyAsync", Code: 1, Kind: errdefs.ErrInvalid},
	} {
		if !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%s: %v does not wrap ErrInvalid", name, err)
		}
		var usage *usageError
		if errors.As(asUsage(fmt.Errorf("measure: %w", errors.Join(err, errdefs.ErrClosed))), &usage) {
			t.Errorf("%s: %v is taken for a wrong command line", name, err)
		}
	}
	var usage *usageError
	if !errors.As(asUsage(fmt.Errorf("open: %w", errdefs.ErrInvalid)), &usage) {
		t.Error("an invalid argument is not reported as wrong usage")
	}
}
