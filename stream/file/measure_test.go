package file_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/file"
)

func TestMeasure(t *testing.T) {
	dev, copies := openSim(t, sim.Options{})
	dir := t.TempDir()
	o := file.Options{Device: dev, Copy: copies, CuFile: file.CuFileOptions{Storage: openStorage(t, dev)}, Chunks: 4}
	p, err := file.Measure(within(t), dir, file.MeasureOptions{Budget: 500 * time.Millisecond, Stream: o})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, q := range p.Points {
		seen[q.Path]++
		if q.GBps <= 0 || q.Dev == 0 || q.Depth == 0 {
			t.Errorf("point %+v", q)
		}
		if q.Path == "cufile" && !q.Device {
			t.Errorf("cuFile to host memory: %+v", q)
		}
	}
	// On a busy machine some points are missing, but for each size and depth either all or none.
	if n := seen["posix"]; n == 0 || n%4 > 0 || n > 24 || seen["cufile"] != n/2 {
		t.Errorf("points by path: %v", seen)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files left in the directory: %v, %v", left, err)
	}
	text, err := json.Marshal(p)
	var back file.Profile
	if err != nil || json.Unmarshal(text, &back) != nil || len(back.Points) != len(p.Points) || back.Points[0] != p.Points[0] {
		t.Errorf("%d points of %d are left: %v", len(back.Points), len(p.Points), err)
	}
}

// TestMeasureKeepsItsBudget checks that a budget that is too short results in the points of the
// first size only.
func TestMeasureKeepsItsBudget(t *testing.T) {
	dir := t.TempDir()
	p, err := file.Measure(within(t), dir, file.MeasureOptions{Budget: time.Nanosecond})
	if err != nil || len(p.Points) == 0 {
		t.Errorf("%d points, error %v, want those of the first size", len(p.Points), err)
	}
	for _, q := range p.Points {
		if q.Bytes != 4<<10 || q.Depth != file.DefaultTransfers {
			t.Errorf("measured with a spent budget: %+v", q)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := file.Measure(ctx, dir, file.MeasureOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files left in the directory: %v, %v", left, err)
	}
}

func TestChoose(t *testing.T) {
	var all [stream.PathCount]bool
	for i := range all {
		all[i] = true
	}
	none, no := all, all
	none[stream.PathCuFile], none[stream.PathURing], no[stream.PathURing] = false, false, false
	p := &file.Profile{Points: []file.Point{
		{Dev: 1, Bytes: 4096, Path: "posix", Depth: 32, GBps: 1},
		{Dev: 1, Bytes: 4096, Path: "uring", Depth: 16, GBps: 2},
		{Dev: 1, Bytes: 1 << 20, Path: "posix", Depth: 4, GBps: 5},
		{Dev: 1, Bytes: 1 << 20, Path: "uring", Depth: 4, GBps: 4},
		{Dev: 1, Bytes: 1 << 20, Path: "cufile", Device: true, Depth: 8, GBps: 4},
		{Dev: 1, Bytes: 1 << 20, Path: "posix", Device: true, Depth: 8, GBps: 5},
		{Dev: 3, Bytes: 4096, Path: "uring", Depth: 8, GBps: 1.15},
		{Dev: 3, Bytes: 4096, Path: "posix", Depth: 128, GBps: 1.1},
		{Dev: 3, Bytes: 4096, Path: "uring", Depth: 128, GBps: 1},
		{Dev: 3, Bytes: 4096, Path: "posix", Depth: 8, GBps: 1.2},
		{Dev: 3, Bytes: 1 << 20, Path: "posix", Depth: 128, GBps: 1},
		{Dev: 3, Bytes: 64 << 10, Path: "uring", Depth: 128, GBps: 1},
		{Dev: 3, Bytes: 64 << 10, Path: "posix", Depth: 128, GBps: 1.3},
		{Dev: 3, Bytes: 1 << 20, Path: "posix", Depth: 8, GBps: 1.3},
		{Dev: 1, Bytes: 1 << 20, Path: "of another version", Device: true, GBps: 99},
	}}
	for name, tt := range map[string]struct {
		p    *file.Profile
		r    file.Request
		can  [stream.PathCount]bool
		want file.Choice
	}{
		"small":                  {p, file.Request{Dev: 1, Bytes: 9000}, all, file.Choice{Path: stream.PathURing, Depth: 16, Reason: file.ReasonMeasured}},
		"small, without uring":   {p, file.Request{Dev: 1, Bytes: 9000}, no, file.Choice{Path: stream.PathPosix, Depth: 32, Reason: file.ReasonMeasured}},
		"large":                  {p, file.Request{Dev: 1, Bytes: 1 << 21}, all, file.Choice{Path: stream.PathPosix, Depth: 4, Reason: file.ReasonMeasured}},
		"to a device":            {p, file.Request{Dev: 1, Bytes: 1, Device: true, GDS: true}, all, file.Choice{Path: stream.PathPosix, Depth: 8, Reason: file.ReasonMeasured}},
		"little differs":         {p, file.Request{Dev: 3, Bytes: 1}, all, file.Choice{Path: stream.PathURing, Depth: 128, Reason: file.ReasonMeasured}},
		"posix is faster":        {p, file.Request{Dev: 3, Bytes: 64 << 10}, all, file.Choice{Path: stream.PathPosix, Depth: 128, Reason: file.ReasonMeasured}},
		"fewer are faster":       {p, file.Request{Dev: 3, Bytes: 1 << 20}, all, file.Choice{Path: stream.PathPosix, Depth: 8, Reason: file.ReasonMeasured}},
		"writes":                 {p, file.Request{Dev: 1, Write: true, Bytes: 1}, all, file.Choice{Path: stream.PathPosix, Reason: file.ReasonDefault}},
		"another file system":    {p, file.Request{Dev: 2, Device: true}, all, file.Choice{Path: stream.PathPosix, Reason: file.ReasonDefault}},
		"nothing measured":       {nil, file.Request{Device: true, GDS: true}, all, file.Choice{Path: stream.PathCuFile, Reason: file.ReasonGDS}},
		"nothing, and no cuFile": {nil, file.Request{Device: true, GDS: true}, none, file.Choice{Path: stream.PathPosix, Reason: file.ReasonDefault}},
	} {
		if got := tt.p.Choose(tt.r, tt.can); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

func TestProfileComparesDirect(t *testing.T) {
	point := func(path string, bytes int64, depth int, gbps float64) file.Point {
		return file.Point{Dev: 1, Device: true, Bytes: bytes, Path: path, Depth: depth, GBps: gbps}
	}
	p := &file.Profile{Points: []file.Point{
		point("posix", 4<<10, 8, 9), point("cufile", 4<<10, 8, 99),
		point("cufile", 1<<20, 8, 2), point("posix", 1<<20, 8, 3), point("uring", 1<<20, 128, 4), point("cufile", 1<<20, 128, 5),
		{Dev: 2, Device: true, Bytes: 1 << 20, Path: "cufile", GBps: 50},
		{Dev: 1, Bytes: 1 << 20, Path: "posix", GBps: 50},
		{Dev: 1, Device: true, Write: true, Bytes: 1 << 20, Path: "posix", GBps: 50},
	}}
	for _, c := range []struct {
		dev   uint64
		bytes int64
		want  file.Comparison
		ok    bool
	}{
		{1, 3 << 20, file.Comparison{Bytes: 1 << 20, Direct: 5, Pinned: 4}, true},
		{1, 16 << 20, file.Comparison{Bytes: 1 << 20, Direct: 5, Pinned: 4}, true},
		{1, 8 << 10, file.Comparison{Bytes: 4 << 10, Direct: 99, Pinned: 9}, true},
		{1, 17 << 20, file.Comparison{}, false},
		{2, 1 << 20, file.Comparison{Bytes: 1 << 20, Direct: 50}, false},
		{3, 1 << 20, file.Comparison{}, false},
	} {
		if got, ok := p.CompareDirect(c.dev, c.bytes); got != c.want || ok != c.ok {
			t.Errorf("file system %d, %d bytes: %+v, %t", c.dev, c.bytes, got, ok)
		}
	}
	for direct, want := range map[float64]bool{1.19: false, 1.2: false, 1.21: true} {
		if c := (file.Comparison{Direct: direct, Pinned: 1}); c.PrefersDirect() != want {
			t.Errorf("%v of the rate is preferred: %t", direct, c.PrefersDirect())
		}
	}
}
