package transfer

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/rdma/rail"
	"github.com/kvlane/kvlane/rdma/registry"
	"github.com/kvlane/kvlane/rdma/soft"
)

// softNICs returns software NICs. They reach memory of dev as the NICs of gdr do, or only host
// memory if dev is nil.
func softNICs(tb testing.TB, dev device.Device, count int) *rail.NICs {
	tb.Helper()
	n, err := gdr.Open(dev, gdr.Config{Provider: gdr.Soft, Count: count}, nil)
	must(tb, err)
	tb.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	nics, err := n.Transfers()
	must(tb, err)
	return nics
}

// faultyNICs returns software NICs with at most sges pieces in a request. Their operations fail
// according to plan.
func faultyNICs(tb testing.TB, plan *fault.Plan, depth, sges int, names ...string) *rail.NICs {
	tb.Helper()
	p, err := soft.New(soft.Options{Devices: make([]soft.DeviceOptions, len(names)), Faults: plan})
	must(tb, err)
	tb.Cleanup(func() {
		plan.Clear()
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	o := rail.Options{Devices: registry.NewDevices(p), Depth: depth, MaxSGE: sges}
	for _, name := range names {
		o.NICs = append(o.NICs, rail.NIC{Name: name})
	}
	n, err := rail.New(o)
	must(tb, err)
	return n
}

// Environment variables with names of NICs, separated by commas: those that tests may use, and
// those of a target process.
const (
	verbsNamesEnv = "KVLANE_VERBS_DEVICES"
	nicEnv        = "KVLANE_TRANSFER_NICS"
)

func namesIn(env string) []string {
	return strings.FieldsFunc(os.Getenv(env), func(r rune) bool { return r == ',' })
}

// openVerbs opens the named NICs of this machine.
func openVerbs(names []string) (*gdr.NICs, *rail.NICs, error) {
	n, err := gdr.Open(nil, gdr.Config{NICs: names}, nil)
	if err != nil {
		return nil, nil, err
	}
	nics, err := n.Transfers()
	if err != nil {
		return nil, nil, errors.Join(err, n.Close(context.Background()))
	}
	return n, nics, nil
}

// limitLocked limits the memory that the current thread may lock. The process must be root.
func limitLocked(limit string) error {
	n, err := strconv.ParseUint(limit, 10, 64)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	var caps [2]unix.CapUserData
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&h, &caps[0]); err != nil {
		return err
	}
	caps[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	return errors.Join(unix.Capset(&h, &caps[0]), unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: n, Max: n}))
}

// targetNICs returns the NICs of a target process, or nil if it has none, and a function that
// closes them.
func targetNICs() (*rail.NICs, func() error, error) {
	names := namesIn(nicEnv)
	if len(names) == 0 {
		return nil, func() error { return nil }, nil
	}
	n, nics, err := openVerbs(names)
	if err != nil {
		return nil, nil, err
	}
	if limit := os.Getenv(lockedEnv); limit != "" {
		if err := limitLocked(limit); err != nil {
			return nil, nil, err
		}
	}
	return nics, func() error { return n.Close(context.Background()) }, nil
}
