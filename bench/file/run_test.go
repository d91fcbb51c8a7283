package file_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/file"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// tiny returns the options of a benchmark that takes a moment.
func tiny(t *testing.T) file.Options {
	t.Helper()
	o := file.Options{
		Dir: t.TempDir(), Bytes: 256 << 10, Sizes: []int64{4 << 10, 64 << 10}, Depths: []int{2, 4}, Threads: []int{1, 3}, Budget: time.Minute,
	}
	o.Hurry()
	return o
}

// ticking returns a clock that advances by a step each time it is read.
func ticking(at time.Time, step time.Duration) func() time.Time {
	return func() time.Time {
		at = at.Add(step)
		return at
	}
}

// Measurements for which the budget is too short are left out and named, and the run exceeds the
// budget by at most a fifth.
func TestDefectBudgetOfFilesIsExceeded(t *testing.T) {
	o := tiny(t)
	begin := time.Now()
	now := ticking(begin, time.Second)
	o.SetClock(now)
	var notices []string
	o.Notice = func(text string) { notices = append(notices, text) }
	r, err := measure(t, o)
	if err != nil {
		t.Fatal(err)
	}
	if took := now().Sub(begin); took > o.Budget*6/5 || len(r.LeftOut) == 0 || len(r.Points) == 0 || len(notices) != 1 {
		t.Errorf("a budget of %v lasted %v; left out: %q; notices: %q", o.Budget, took, r.LeftOut, notices)
	}
	var b strings.Builder
	if err := r.WriteText(&b); err != nil || !strings.Contains(b.String(), "! not measured: "+r.LeftOut[0]) || !strings.Contains(b.String(), ": it did not fit the budget of 60 s\n") {
		t.Errorf("%v:\n%s", err, b.String())
	}
	o.SetClock(ticking(begin, time.Minute))
	if _, err := measure(t, o); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a budget too small for any measurement: %v", err)
	}
}

// measure runs a benchmark, and checks that its directory is empty afterwards.
func measure(t *testing.T, o file.Options) (*file.Report, error) {
	t.Helper()
	r, err := file.Run(t.Context(), o)
	if errors.Is(err, errdefs.ErrNotSupported) {
		testkit.Skip(t, "direct-io", err.Error())
	}
	if left, e := os.ReadDir(o.Dir); e != nil || len(left) != 0 {
		t.Errorf("files left in the directory: %v, %v", left, e)
	}
	return r, err
}

// A contender that alternates with fifteen others got the same sixteenth of the file each time,
// which may be a slow one.
func TestDefectContendersKeepToPlaces(t *testing.T) {
	const size, batches = 1 << 20, 16
	o := file.Options{Bytes: 1 << 30}
	for _, order := range []file.Order{file.Scattered, file.Sequential} {
		draw := file.Draws(o, file.Place{Work: file.Read, From: file.Cold, Order: order, Size: size})
		mine := make(map[int64]bool)
		for range 8 {
			seen := make(map[int64]bool)
			for i := range batches {
				offs := draw()
				for k, off := range offs {
					if i == 0 {
						mine[off] = true
					}
					seen[off] = true
					if order == file.Sequential && off != offs[0]+int64(k)*size {
						t.Fatalf("%s: %v", order, offs)
					}
				}
			}
			if order == file.Scattered && len(seen) != int(o.Bytes/size) {
				t.Errorf("a pass has %d blocks of %d", len(seen), o.Bytes/size)
			}
		}
		if len(mine) < 2*64 {
			t.Errorf("%s: the first contender has had %d blocks in 8 passes", order, len(mine))
		}
	}
}

func TestRawDeviceIsMeasured(t *testing.T) {
	o := tiny(t)
	var reported int
	o.Progress = func(done, total int, what string) {
		if reported++; done > total || (what == "") != (done == total) {
			t.Errorf("progress %d of %d, %q", done, total, what)
		}
	}
	r, err := measure(t, o)
	if err != nil {
		t.Fatal(err)
	}
	const places = 2 * (2 + 1) * 2 // sizes; cold and cached reads and writes; orders
	each := 4 - 2*min(len(r.Missing), 1)
	if len(r.Points) != places*each || reported != places+1 {
		t.Errorf("%d points, %d places reported", len(r.Points), reported)
	}
	best := 0
	for i := range r.Points {
		p := &r.Points[i]
		if !p.Raw || p.End != file.Host || p.Reps < 1 || p.GBps <= 0 || p.P50Micros <= 0 || p.P99Micros < p.P50Micros || p.PercentOfRaw > 100.001 ||
			p.Bytes != int64(p.Blocks)*p.Size || p.Bytes > o.Bytes || p.By == "" {
			t.Errorf("point %+v", p)
		}
		if p.Best() {
			best++
		}
	}
	if best != places {
		t.Errorf("%d raw ones are the best of %d places", best, places)
	}
}

// The batch length is the configured one, or follows from defaults for blocks and bytes. It never
// exceeds the file.
func TestBatchIsAsLongAsAsked(t *testing.T) {
	for _, tt := range []struct {
		bytes, atOnce, size int64
		want                int
	}{
		{1 << 30, 0, 4 << 10, 2048},
		{1 << 30, 0, 1 << 20, 64},
		{1 << 30, 0, 64 << 20, 8},
		{1 << 20, 0, 64 << 10, 16},
		{1 << 30, 256 << 20, 4 << 10, 64 << 10},
		{1 << 30, 256 << 20, 1 << 20, 256},
		{1 << 30, 1 << 20, 1 << 20, 8},
		{4 << 20, 4 << 20, 1 << 20, 4},
	} {
		o := file.Options{Bytes: tt.bytes, AtOnce: tt.atOnce}
		if got := len(file.Draws(o, file.Place{Work: file.Read, Order: file.Sequential, Size: tt.size})()); got != tt.want {
			t.Errorf("%+v: %d blocks", tt, got)
		}
	}
}

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// The text report of fixed figures.
func TestText(t *testing.T) {
	r := &file.Report{
		Machine: bench.Facts{
			Device: "a GPU", Driver: "cuda", DriverVersion: "580.1", Simulated: true, CPUs: 16, GoVersion: "go1.26",
			Date: time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC), Seconds: 61.5, Command: "kvlane bench file --dir /mnt/nvme",
		},
		Setup:      file.Setup{FileSystem: "ext4", Bytes: 1 << 30, Sizes: []int64{4 << 10, 1 << 20}, BudgetSeconds: 60, Seed: 1},
		Missing:    []bench.Missing{{Path: "cufile", Reason: "libcufile.so.0 not found"}, {Path: "uring", Reason: "io_uring is switched off"}, {Path: "cufile-direct", Reason: "libcufile.so.0 not found"}},
		LeftOut:    []string{"cold write, scattered, blocks of 4 KiB"},
		Incomplete: bench.Interrupted,
	}
	for _, from := range []file.From{file.Cold, file.PageCache} {
		for i, size := range []int64{4 << 10, 1 << 20} {
			for j, name := range []string{"io_uring-8", "threads-4", "posix", "auto"} {
				r.Points = append(r.Points, file.Point{
					Place: file.Place{Work: file.Read, From: from, Order: file.Scattered, Size: size}, Name: name, Raw: j < 2, End: file.Host, By: "posix", Blocks: 256 >> i,
					GBps: 3.1 - float64(j)/10, P50Micros: 338, P99Micros: 12_345, RawName: "io_uring-8", PercentOfRaw: 100 - 3*float64(j),
				})
			}
		}
	}
	at := file.Place{Work: file.Read, From: file.Cold, Order: file.Scattered, Size: 1 << 20}
	r.Reads = []file.Reads{{Place: at, Direct: 2.4, Pinned: 5.25, Raw: 5.5}, {Place: at, Pinned: 12, Raw: 40}}
	r.Reads[1].From, r.Reads[1].Size = file.PageCache, 4<<10
	presenttest.Check(t, "report", *rewrite, r.WriteText)
}

func TestReportIsWritten(t *testing.T) {
	r, err := measure(t, tiny(t))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Cold read, sequential", "From the page cache: read, scattered", "Cold write, scattered", "  raw: ", "256 KiB each"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text has no %q:\n%s", want, text.String())
		}
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

// copies is a fake stream of files that copies synchronously.
type copies struct {
	open map[*mem.Region]*os.File
	dev  device.Device
	harm func(b []byte) // corrupts the bytes of reads
}

type plain string

func (p plain) Name() string { return string(p) }

func (c *copies) files(name string, bytes int64) (*mem.Region, func(context.Context) error, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	r, err := mem.NewRegion(mem.RegionSpec{Kind: mem.KindFile, Device: mem.NoDevice, Len: bytes, File: plain(name)})
	if c.open == nil {
		c.open = make(map[*mem.Region]*os.File)
	}
	c.open[r] = f
	return r, func(context.Context) error { return f.Close() }, err
}

func (c *copies) Submit(ctx context.Context, b *mem.Batch) (*stream.Ticket, error) {
	err := context.Cause(ctx)
	for dst, src := range b.Extents() {
		if err == nil {
			err = c.copy(ctx, dst, src)
		}
	}
	t := stream.NewTicket(1, nil)
	t.Resolve(stream.Completion{Path: stream.PathPosix, Bytes: b.Bytes()}, err)
	return t, nil
}

func (c *copies) copy(ctx context.Context, dst, src mem.Extent) error {
	memory := dst
	if f := c.open[dst.Region]; f != nil {
		memory = src
	}
	bytes := memory.Bytes()
	if bytes == nil {
		bytes = make([]byte, memory.Len)
	}
	if f := c.open[src.Region]; f != nil {
		if _, err := f.ReadAt(bytes, src.Off); err != nil {
			return err
		}
		if c.harm != nil {
			c.harm(bytes)
		}
		return c.device(ctx, memory, bytes, true)
	}
	if err := c.device(ctx, memory, bytes, false); err != nil {
		return err
	}
	_, err := c.open[dst.Region].WriteAt(bytes, dst.Off)
	return errors.Join(err, c.open[dst.Region].Sync())
}

// device copies between bytes and memory, if memory is device memory.
func (c *copies) device(ctx context.Context, memory mem.Extent, bytes []byte, in bool) error {
	if memory.Bytes() != nil {
		return nil
	}
	q, err := c.dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		return err
	}
	host, err := c.dev.AllocHost(memory.Len)
	if err != nil {
		return err
	}
	copy(host.Bytes(), bytes)
	dst, src := mem.All(host), memory
	if in {
		dst, src = src, dst
	}
	err = errors.Join(q.Copy(dst, src), q.Close(ctx))
	copy(bytes, host.Bytes())
	return errors.Join(err, c.dev.Free(host))
}

func (c *copies) Close(context.Context) error { return nil }

// withStream adds a stream to a benchmark.
func withStream(t *testing.T, o *file.Options, c *copies) {
	t.Helper()
	dev, err := sim.Open(sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	o.Device, c.dev, o.Files = dev, dev, c.files
	o.Contenders = []file.Contender{
		{Name: "copies", Open: func(context.Context) (stream.Stream, error) { return c, nil }},
		{Name: "none", Open: func(context.Context) (stream.Stream, error) { return nil, errdefs.ErrNotSupported }},
	}
	o.Sizes = o.Sizes[:1]
	o.Bytes = 64 << 10
}

func TestStreamsAreMeasuredBesideTheRawDevice(t *testing.T) {
	o := tiny(t)
	withStream(t, &o, new(copies))
	r, err := measure(t, o)
	if err != nil {
		t.Fatal(err)
	}
	var ends []file.End
	for i := range r.Points {
		if p := &r.Points[i]; !p.Raw && p.Work == file.Write && p.Order == file.Scattered {
			if ends = append(ends, p.End); p.RawGBps <= 0 || p.RawName == "" || p.By != "posix" {
				t.Errorf("point %+v", p)
			}
		}
	}
	for i := range r.Reads {
		if c := &r.Reads[i]; c.Direct != 0 || c.Pinned <= 0 || c.Raw <= 0 {
			t.Errorf("comparison %+v", c)
		}
	}
	if len(r.Reads) != 2*2 {
		t.Errorf("%d comparisons of reads", len(r.Reads))
	}
	if len(ends) != 2 || !r.Machine.Simulated {
		t.Errorf("ends %v, facts %+v", ends, r.Machine)
	}
	if n := len(r.Missing); n == 0 || r.Missing[n-1].Path != "none" {
		t.Errorf("missing %+v", r.Missing)
	}
}

func TestWrongBytesFailTheRun(t *testing.T) {
	o := tiny(t)
	withStream(t, &o, &copies{harm: func(b []byte) { b[len(b)-1] ^= 1 }})
	if _, err := measure(t, o); !errors.Is(err, errdefs.ErrCorrupt) || !strings.Contains(err.Error(), "copies, host") {
		t.Error(err)
	}
}

func TestAnInterruptedRunLeavesNothing(t *testing.T) {
	for _, at := range []int{0, 3} {
		o := tiny(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("interrupted")
		o.Progress = func(done, _ int, _ string) {
			if done == at {
				cancel(gone)
			}
		}
		r, err := file.Run(ctx, o)
		if errors.Is(err, errdefs.ErrNotSupported) {
			testkit.Skip(t, "direct-io", err.Error())
		}
		if (r != nil) != (at > 0) || r != nil && (r.Incomplete != bench.Interrupted || len(r.Points) == 0) {
			t.Errorf("measurements up to place %d: %+v", at, r)
		}
		if left, e := filepath.Glob(filepath.Join(o.Dir, "*")); !errors.Is(err, gone) || e != nil || len(left) != 0 {
			t.Errorf("%v; left %v, %v", err, left, e)
		}
	}
}

func TestADiskWithoutRoomIsAClearError(t *testing.T) {
	o := tiny(t)
	o.Bytes = file.MaxBytes // more than the disk of any test machine
	_, err := measure(t, o)
	if !errors.Is(err, errdefs.ErrNoSpace) || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), o.Dir) {
		t.Error(err)
	}
}

func TestOptionsAreValidated(t *testing.T) {
	err := file.Options{
		Sizes: []int64{1000}, Bytes: 10, Work: []file.Work{"idle"}, Orders: []file.Order{"x"}, From: []file.From{"tape"}, Ends: []file.End{file.Device},
		Depths: []int{0}, Threads: []int{file.MaxThreads + 1}, Budget: -1, Contenders: make([]file.Contender, 1),
	}.Validate()
	for _, want := range []string{"no directory", "1000 bytes", "file of 10", `"idle"`, `"x"`, `"tape"`, "no device is given", "0 requests", "threads", "no function to open files"} {
		if !errors.Is(err, errdefs.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	o := tiny(t)
	o.Work, o.From = []file.Work{file.Write}, []file.From{file.PageCache}
	if _, err := file.Run(t.Context(), o); !errors.Is(err, errdefs.ErrInvalid) {
		t.Error(err)
	}
	o = tiny(t)
	o.Dir = filepath.Join(o.Dir, "none")
	if _, err := file.Run(t.Context(), o); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
