package bench

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

func TestOptionsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(*Options){
		"size of no words":           func(o *Options) { o.Sizes = []int64{4097} },
		"size zero":                  func(o *Options) { o.Sizes = []int64{0} },
		"size over a batch":          func(o *Options) { o.Sizes = []int64{64 << 10} },
		"count zero":                 func(o *Options) { o.Counts = []int{0} },
		"count over the most":        func(o *Options) { o.Counts = []int{MaxCount + 1} },
		"batch over the pool":        func(o *Options) { o.Bytes = 200 << 10 },
		"large copy over the pool":   func(o *Options) { o.ReferenceBytes = 200 << 10 },
		"negative large copy":        func(o *Options) { o.ReferenceBytes = -8 },
		"odd pool":                   func(o *Options) { o.PoolBytes = 100<<10 + 1 },
		"negative budget":            func(o *Options) { o.Budget = -1 },
		"negative repetitions":       func(o *Options) { o.Reps = -1 },
		"path that copies no memory": func(o *Options) { o.Contenders = []Contender{{Path: stream.PathPosix}} },
		"form":                       func(o *Options) { o.Form = "pictures" },
		"sums of part of a leaf":     func(o *Options) { o.Form, o.Sizes = PagesSummed, []int64{512} },
	} {
		t.Run(name, func(t *testing.T) {
			o := small()
			spoil(&o)
			if _, err := run(t, t.Context(), nil, o); !errors.Is(err, errdefs.ErrInvalid) {
				t.Errorf("error %v, want ErrInvalid", err)
			}
		})
	}
}

func TestDefaultsFollowTheDevice(t *testing.T) {
	gpu, simulated := Options{}.withDefaults(device.Info{Driver: "cuda"}), Options{}.withDefaults(device.Info{Driver: "sim"})
	for _, o := range []*Options{&gpu, &simulated} {
		if err := o.validate(); err != nil {
			t.Error(err)
		}
	}
	if gpu.ReferenceBytes != 256<<20 || gpu.PoolBytes != 2<<30 || simulated.PoolBytes >= gpu.PoolBytes {
		t.Errorf("defaults %+v and %+v", gpu, simulated)
	}
	// Values that are given raise the defaults of others.
	if o := (Options{Bytes: 4 << 30}).withDefaults(device.Info{Driver: "cuda"}); o.PoolBytes != 4<<30 {
		t.Errorf("the pool has %d bytes for batches of 4 GiB", o.PoolBytes)
	}
}

func TestCells(t *testing.T) {
	gpu := func(o Options) []Cell {
		o = o.withDefaults(device.Info{Driver: "cuda"})
		return o.cells()
	}
	for _, c := range []struct {
		o    Options
		want []Cell
	}{
		{Options{Sizes: []int64{4096, 16 << 20}, Counts: []int{1, 1000}}, []Cell{{4096, 1}, {4096, 1000}, {16 << 20, 1}}},
		{Options{Sizes: []int64{256, 1 << 20}}, []Cell{{256, MaxCount}, {1 << 20, 512}}},
	} {
		if got := gpu(c.o); !slices.Equal(got, c.want) {
			t.Errorf("cells %v, want %v", got, c.want)
		}
	}
	full := gpu(Options{Full: true})
	for _, want := range []Cell{{MinSize, 1}, {MinSize, MaxCount}, {MaxSize, 1}, {MaxSize, 256}, {32 << 10, MaxCount}} {
		if !slices.Contains(full, want) {
			t.Errorf("the whole table lacks %v: %v", want, full)
		}
	}
	for _, c := range full {
		if c.Size*int64(c.Count) > 4<<30 {
			t.Errorf("%v is more than 4 GiB", c)
		}
	}
	for _, size := range []int64{256, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20} {
		if !slices.ContainsFunc(gpu(Options{}), func(c Cell) bool { return c.Size == size && size*int64(c.Count) >= 24<<20 }) {
			t.Errorf("the default grid has no batch of %d that fills the link", size)
		}
	}
}

func TestContendersHaveNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range Contenders() {
		got, err := ParseContender(c.Name())
		if err != nil || got != c || seen[c.Name()] {
			t.Errorf("%q parses as %+v, %v", c.Name(), got, err)
		}
		seen[c.Name()] = true
	}
	for _, want := range []string{"auto", "auto:background", "kernel", "one-copy-each", "driver-batch"} {
		if !seen[want] {
			t.Errorf("no contender is %q", want)
		}
	}
	if _, err := ParseContender("posix"); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("posix: %v", err)
	}
}

// Absurd numbers are refused before anything is allocated. The error names the limits.
func TestDefectAbsurdNumbersAreRefused(t *testing.T) {
	const most = math.MaxInt64 &^ 7
	for name, o := range map[string]Options{
		"sizes": {Sizes: []int64{most}}, "counts": {Counts: []int{most}}, "bytes": {Bytes: most}, "pool": {PoolBytes: most},
		"large": {ReferenceBytes: most}, "reps": {Reps: most}, "peer": {PeerBytes: most}, "peer large": {PeerReferenceBytes: most},
	} {
		for _, driver := range []string{"sim", "cuda"} {
			err := o.Validate(device.Info{Driver: driver})
			if !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), strconv.Itoa(most)) {
				t.Errorf("%s on %s: %v", name, driver, err)
			}
		}
	}
}
