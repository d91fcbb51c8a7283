package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/present/presenttest"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// nicSample returns a report with copies over NICs.
func nicSample(nic, channel string) *Report {
	r := sample()
	r.Peers, r.Missing, r.Points = nil, nil, nil
	r.Setup.NICs = []string{"mlx5_0: same PCIe switch"}
	var points []Point
	for i, path := range []string{"one-copy-each", "kernel", "auto", channel, nic} {
		for _, size := range []int64{4 << 10, 64 << 10} {
			for _, d := range []Direction{ToDevice, ToHost} {
				p := samplePoint(path, Lists, place{Cell{size, int(128 << 20 / size)}, d, HostContiguous}, float64(8*i+1), r.Reference.Of(d).GBps)
				p.Baseline = path == channel || p.Baseline
				p.BusyCPUs = float64(i) / 2
				points = append(points, p)
			}
		}
	}
	r.add(points)
	return r
}

func TestNICsInReports(t *testing.T) {
	hard, soft := nicSample("nic", "nic-channel"), nicSample("nic-soft", "nic-soft-channel")
	presenttest.Check(t, "nic", *rewrite, hard.WriteText)
	presenttest.Check(t, "nic-soft", *rewrite, soft.WriteText)
}

// Figures of software NICs are in a separate part of the report, and never among the others.
func TestSoftNICsAreKeptApart(t *testing.T) {
	r := nicSample("nic-soft", "nic-soft-channel")
	if len(r.Soft) != 8 || len(r.Points) != 12 {
		t.Fatalf("%d points, and %d of NICs in software", len(r.Points), len(r.Soft))
	}
	for _, row := range slices.Concat(r.BySize(ToDevice, HostContiguous), r.ByCount(r.LatencySize(), ToDevice, HostContiguous)) {
		if strings.Contains(row.Path, "soft") {
			t.Errorf("software NIC path %s is among the hardware paths", row.Path)
		}
	}
	if rows := r.NICRows(ToDevice, HostContiguous, false); rows != nil {
		t.Errorf("NICs in software pass for hardware: %+v", rows)
	}
	if rows := r.NICRows(ToDevice, HostContiguous, true); len(rows) != 4 {
		t.Errorf("rows %+v", rows)
	}
}

// Regrets compare the streams' choices only with paths that they can choose.
func TestRegretsKnowNoNIC(t *testing.T) {
	for _, l := range nicSample("nic", "nic-channel").Regrets() {
		if l.Best != "kernel" || l.Baseline != "one-copy-each" {
			t.Errorf("regret %+v", l)
		}
	}
}

// fakeNIC replaces NICs. Its channels and streams copy on a stream, and it checks that memory is
// registered while they are used.
type fakeNIC struct {
	t          *testing.T
	registered []*mem.Region
	opened     int // number of open channels and streams
	failures   error
}

func (f *fakeNIC) Register(regions ...*mem.Region) error {
	if f.opened > 0 {
		f.t.Error("memory is registered after something was opened")
	}
	f.registered = append(f.registered, regions...)
	return f.failures
}

func (f *fakeNIC) Unregister(_ context.Context, regions ...*mem.Region) error {
	if f.opened > 0 || !slices.Equal(regions, f.registered) {
		f.t.Errorf("%d channels are open when %d regions are given up", f.opened, len(regions))
	}
	f.registered = nil
	return nil
}

type fakeChannel struct {
	stream.Stream
	nic *fakeNIC
}

func (c fakeChannel) Move(ctx context.Context, batches []mem.Batch) (time.Time, error) {
	for i := range batches {
		if !slices.Contains(c.nic.registered, batches[i].Dst[0].Region) || !slices.Contains(c.nic.registered, batches[i].Src[0].Region) {
			c.nic.t.Error("a batch names memory that is not registered")
		}
	}
	m := streamMover{s: c.Stream}
	return m.move(ctx, batches)
}

func (c fakeChannel) Path() stream.Path { return stream.PathNICSoft }

func (c fakeChannel) Close(ctx context.Context) error {
	c.nic.opened--
	return c.Stream.Close(ctx)
}

func TestChannelsAreMeasured(t *testing.T) {
	dev, err := sim.Open(sim.Options{MemoryBytes: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	nic := &fakeNIC{t: t}
	open := func(Contender) (fakeChannel, error) {
		s, err := streamcopy.Open(dev, streamcopy.Options{})
		nic.opened++
		return fakeChannel{s, nic}, err
	}
	o := small()
	o.Contenders, o.SoftNIC, o.Memory = []Contender{{Path: stream.PathNICSoft}, {Baseline: NICSoftChannel}, {Baseline: NICChannel}}, true, nic
	o.OpenChannel = func(c Contender) (Channel, error) {
		if c.Baseline == NICChannel {
			return nil, errdefs.ErrNotSupported
		}
		return open(c)
	}
	o.Directions, o.Layouts = []Direction{ToHost}, []Layout{HostScattered}
	rep, err := Run(t.Context(), dev, func(c Contender) (stream.Stream, error) { return open(c) }, o)
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
	if len(rep.Points) != 0 || len(rep.Soft) != 2*len(o.Sizes) || len(nic.registered) != 0 || nic.opened != 0 {
		t.Errorf("%d points, %d of NICs in software, %d regions registered, %d open", len(rep.Points), len(rep.Soft), len(nic.registered), nic.opened)
	}
	for _, p := range rep.Soft {
		if p.GBps <= 0 || p.BusyCPUs <= 0 || p.Baseline != (p.Path == "nic-soft-channel") {
			t.Errorf("point %+v", p)
		}
	}
	if len(rep.Missing) != 1 || rep.Missing[0].Path != "nic-channel" {
		t.Errorf("missing %+v", rep.Missing)
	}
}

// A run reports channels that no NIC provides. A run whose memory cannot be registered fails.
func TestNoChannels(t *testing.T) {
	o := small(Contender{Baseline: NICChannel})
	rep, err := run(t, t.Context(), nil, o)
	if err != nil || len(rep.Missing) != 1 || !strings.Contains(rep.Missing[0].Reason, "no NIC") {
		t.Errorf("%v, %+v", err, rep)
	}
	o.Memory = &fakeNIC{t: t, failures: errdefs.ErrBusy}
	if _, err := run(t, t.Context(), nil, o); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("error %v", err)
	}
}
