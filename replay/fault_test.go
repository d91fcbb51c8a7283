package replay

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier/file"
)

// twice writes a trace with two requests for the same blocks. The first dumps them, the second
// loads them.
func twice(t *testing.T) string {
	t.Helper()
	return writeTrace(t, []int64{1, 2, 3, 4}, []int64{1, 2, 3, 4})
}

// The store checks bytes on the host. If the hardware changes a byte on the way to the device, the
// replay must detect it and report its place.
func TestWrongByteOnTheDeviceIsFound(t *testing.T) {
	for _, layerwise := range []bool{false, true} {
		plan := fault.New(1)
		r := newRig(t, rigOptions{geometry: layered, slots: 16, sim: sim.Options{Faults: plan}})
		c := r.config(layered, twice(t))
		c.Layerwise, c.Concurrency = layerwise, 1
		c.Progress = func(Step) {
			// This is called after the first request. The second starts by poisoning its pages, and
			// then loads blocks with a copy engine or a kernel.
			if plan.Injected() == 0 {
				plan.Add(fault.Nth(sim.OpWork, int(plan.Seen(sim.OpWork))+1).Corrupt())
			}
		}
		rep, err := Run(t.Context(), c)
		if plan.Injected() != 1 {
			t.Fatalf("%d faults were injected", plan.Injected())
		}
		if !errors.Is(err, ErrWrongBytes) || !strings.Contains(err.Error(), "line 2: block ") {
			t.Errorf("got %v, want ErrWrongBytes at line 2", err)
		}
		if rep.Mismatches != 1 || rep.MismatchedBytes != 1 || len(rep.MismatchSamples) != 1 || rep.PrefixHits != 4 {
			t.Fatalf("report: %+v", rep)
		}
		m := rep.MismatchSamples[0]
		if m.HashID < 1 || m.HashID > 4 || m.Tier != "cache" || m.WrongBytes != 1 || m.Layer < 0 || m.Layer > 2 ||
			m.Part != "k" && m.Part != "v" || m.Offset < 0 || m.Offset >= 67 || len(m.Key) != 2*block.KeyBytes {
			t.Errorf("mismatch: %+v", m)
		}
	}
}

// A block that cannot be loaded is computed and does not count as a hit. The replay continues.
func TestFailedLoadIsComputedInstead(t *testing.T) {
	plan := fault.New(1)
	r := newRig(t, rigOptions{geometry: layered, slots: 16, sim: sim.Options{Faults: plan}})
	c := r.config(layered, twice(t))
	c.Progress = func(Step) {
		if plan.Injected() == 0 {
			plan.Add(fault.Nth(sim.OpWork, int(plan.Seen(sim.OpWork))+1).Fail(nil))
		}
	}
	rep, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Injected() != 1 || rep.LoadErrors == 0 || rep.PrefixHits+rep.LoadErrors != 4 || rep.Mismatches != 0 {
		t.Errorf("report: %+v", rep)
	}
	if len(rep.ErrorSamples) == 0 || !strings.Contains(rep.ErrorSamples[0], "injected fault") {
		t.Errorf("samples do not give the cause: %q", rep.ErrorSamples)
	}
}

// Each operation of the device fails once. The replay must report the failure, verify no wrong byte
// and release everything.
func TestNoFailureOfTheDeviceGoesUnreported(t *testing.T) {
	for _, op := range []string{
		sim.OpWork, sim.OpLaunch, sim.OpCallCopy, sim.OpCallLaunch, sim.OpRecord, sim.OpAlloc, sim.OpAllocHost, sim.OpOpen,
	} {
		t.Run(op, func(t *testing.T) {
			trace := twice(t)
			for n := 0; ; n++ {
				plan := fault.New(1)
				o := rigOptions{geometry: layered, slots: 16, sim: sim.Options{Faults: plan}}
				if op == sim.OpCallCopy { // devices without kernels copy this way
					o.device = func(d device.Device) device.Device { return plainDevice{d} }
				}
				r := newRig(t, o)
				plan.Add(fault.Nth(op, int(plan.Seen(op))+n).Fail(nil))
				rep, err := Run(t.Context(), r.config(layered, trace))
				err = errors.Join(err, r.store.Close(t.Context())) // Close of the store may return the error
				if plan.Injected() == 0 {
					if err != nil || n == 0 {
						t.Errorf("after %d operations: %v", n, err)
					}
					return
				}
				reported(t, n, rep, err)
				if n > 1000 {
					t.Fatal("the number of operations has no limit")
				}
			}
		})
	}
}

// reported checks that the failure of operation n is reported by the error or the report, as a
// failure or as a path that was given up, and that no byte was wrong.
func reported(t *testing.T, n int, rep *Report, err error) {
	t.Helper()
	reported := err != nil && errors.Is(err, fault.ErrInjected)
	if rep != nil {
		reported = reported || rep.LoadErrors > 0 && strings.Contains(strings.Join(rep.ErrorSamples, ""), "injected fault") ||
			rep.PathsGivenUp == 1 && strings.Contains(strings.Join(rep.Notes, ""), "injected fault")
		if rep.Mismatches > 0 {
			t.Errorf("operation %d: %d mismatches", n, rep.Mismatches)
		}
	}
	if !reported {
		t.Errorf("operation %d failed, and the replay returns %v; %+v", n, err, rep)
	}
}

// With two cache slots most blocks must be read from their files again, after they are written: a
// prefix cannot be leased before.
func TestNoFailureOfTheFilesGoesUnreported(t *testing.T) {
	trace := writeTrace(t, []int64{1, 2, 3, 4, 5, 6})
	for _, op := range []string{"write", "rename", "read"} {
		t.Run(op, func(t *testing.T) {
			for n := 0; ; n++ {
				plan := fault.New(1)
				r := newRig(t, rigOptions{geometry: layered, slots: 2, dir: t.TempDir(), fs: faultfs.New(dirfs.OS(), plan, nil)})
				if op == "read" {
					if _, err := Run(t.Context(), r.config(layered, trace)); err != nil {
						t.Fatal(err)
					}
				}
				plan.Add(fault.Nth(op, int(plan.Seen(op))+n).Fail(unix.EIO))
				rep, err := Run(t.Context(), r.config(layered, trace))
				if plan.Injected() == 0 {
					if err != nil || n == 0 {
						t.Errorf("after %d operations: %v", n, err)
					}
					return
				}
				reported(t, n, rep, err)
				if n > 1000 {
					t.Fatal("the number of operations has no limit")
				}
			}
		})
	}
}

// If the directory is full, only the blocks that do not fit are lost. The error reports the reason,
// and the next replay finds the earlier blocks.
func TestFullDirectoryLosesNothing(t *testing.T) {
	dir, plan := t.TempDir(), fault.New(1)
	r := newRig(t, rigOptions{geometry: layered, slots: 8, dir: dir, fs: faultfs.New(dirfs.OS(), plan, nil)})
	plan.Add(fault.After("write", int(plan.Seen("write"))+3).Partial(unix.ENOSPC))
	trace := writeTrace(t, []int64{1, 2}, []int64{3, 4}, []int64{5, 6}, []int64{1, 2})
	rep, err := Run(t.Context(), r.config(layered, trace))
	if !errors.Is(err, errdefs.ErrNoSpace) || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want ErrNoSpace with the errno and the directory", err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has several lines: %v", err)
	}
	failed := 0 // blocks of any requests, because several goroutines write
	for _, text := range rep.ErrorSamples {
		if strings.Contains(text, "\n") {
			t.Errorf("a failure has several lines: %s", text)
		}
		if failed++; strings.HasSuffix(text, "; and 1 block more") {
			failed++
		}
	}
	if failed != 3 {
		t.Errorf("failures %q, want the number of the other blocks", rep.ErrorSamples)
	}
	if !rep.Complete || rep.DumpErrors != 3 || rep.DumpedBlocks != 3 || rep.Mismatches != 0 || rep.PrefixHits != 2 {
		t.Errorf("report: %+v", rep)
	}
	plan.Clear()
	left, err := file.Verify(t.Context(), dir, nil)
	if err != nil || left.Blocks != 3 || !left.Clean() {
		t.Errorf("the directory contains %+v, %v; want 3 sound blocks and no other file", left, err)
	}
}

// If a log tier follows the full directory, no block is lost, and the report names the tier of the
// directory.
func TestFullMiddleTierIsNamed(t *testing.T) {
	plan := fault.New(1)
	r := newRig(t, rigOptions{geometry: layered, slots: 4, dir: t.TempDir(), logDir: t.TempDir(), fs: faultfs.New(dirfs.OS(), plan, nil)})
	plan.Add(fault.After("write", int(plan.Seen("write"))+3).Partial(unix.ENOSPC))
	rep, err := Run(t.Context(), r.config(layered, writeTrace(t, []int64{1, 2}, []int64{3, 4}, []int64{5, 6}, []int64{1, 2}, []int64{5, 6})))
	if err != nil || rep.DumpErrors != 0 || rep.DumpedBlocks != 6 || rep.Mismatches != 0 || rep.PrefixHits != 4 {
		t.Errorf("%v; report: %+v", err, rep)
	}
	if len(rep.Notes) != 1 || !strings.Contains(rep.Notes[0], "tier file did not store 3 blocks") || !strings.Contains(rep.Notes[0], "no space") {
		t.Errorf("notes: %q", rep.Notes)
	}
}

// keeping simulates a NIC that refuses memory but keeps a part of it registered.
type keeping struct{ kept, taken int }

func (k *keeping) Register(...*mem.Region) error {
	k.kept++
	return errdefs.ErrNotSupported
}

func (k *keeping) Unregister(context.Context, ...*mem.Region) error {
	k.taken++
	return nil
}

// TestDefectMemoryIsFreedWhereANICKeepsIt checks that a failed registration is undone before the KV
// cache is freed.
func TestDefectMemoryIsFreedWhereANICKeepsIt(t *testing.T) {
	r := newRig(t, rigOptions{geometry: layered, slots: 16})
	c, k := r.config(layered, twice(t)), &keeping{}
	c.Memory = k
	if _, err := Run(t.Context(), c); !errors.Is(err, errdefs.ErrNotSupported) || k.kept != 1 || k.taken != 1 {
		t.Errorf("%v; registered %d times, unregistered %d", err, k.kept, k.taken)
	}
}
