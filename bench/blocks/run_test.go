package blocks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/bench/rounds"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRunMeasuresEverySubject(t *testing.T) {
	o := Options{Sizes: []int64{64 << 10, 100_001}, Depths: []int{1, 8}, Rounds: 3, Duration: 5 * time.Millisecond}
	last := 0
	o.Progress = func(done, total int, _ string) {
		if last = done; total != 12 {
			t.Errorf("%d measurements in all, want 12", total)
		}
	}
	r, err := Run(t.Context(), o)
	must(t, err)
	if len(r.Points) != 14 || last != 12 {
		t.Fatalf("%d points after %d rounds, want 14 and 12", len(r.Points), last)
	}
	for _, p := range r.Points {
		if p.Ops < 3 || p.OpsPerSecond <= 0 || p.GBps <= 0 || p.P50Micros <= 0 || p.P99Micros < p.P50Micros || p.P999Micros < p.P99Micros {
			t.Errorf("point %+v", p)
		}
	}
	var text bytes.Buffer
	must(t, r.WriteText(&text))
	for _, want := range []string{"of sockets", "64 KiB", "at depth 8", "memory", "tcp"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, text.String())
		}
	}
	b, err := json.Marshal(r)
	must(t, err)
	var again Report
	must(t, json.Unmarshal(b, &again))
	if again.Kind != Kind || len(again.Points) != 14 {
		t.Errorf("report %+v", again)
	}
}

func TestInterruptedRunReportsItsPoints(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := Options{Sizes: []int64{4096}, Depths: []int{1, 2}, Rounds: 1, Duration: time.Millisecond}
	o.Progress = func(done, _ int, _ string) {
		if done == 1 {
			cancel()
		}
	}
	r, err := Run(ctx, o)
	if !errors.Is(err, context.Canceled) || len(r.Points) != 3 || r.Incomplete == "" {
		t.Errorf("report %+v, %v", r, err)
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	for _, o := range []Options{
		{Sizes: []int64{0}}, {Sizes: []int64{9 << 20}}, {Depths: []int{0}}, {Depths: []int{1025}}, {Sizes: []int64{8 << 20}, Depths: []int{1024}}, {Rounds: -1}, {Duration: -1},
	} {
		if _, err := Run(t.Context(), o); !errors.Is(err, errdefs.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", o, err)
		}
	}
}

func TestWrongBytesFail(t *testing.T) {
	piece := make([]byte, 4096)
	check := checkPiece(len(piece), xxh3.Hash(piece))
	result := append([]byte("head"), piece...)
	must(t, check(result))
	result[5] = 1
	if err := check(result); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("%v, want ErrCorrupt", err)
	}
	r, err := open(t.Context(), 4096, 2, nil)
	must(t, err)
	defer func() { must(t, r.close(t.Context())) }()
	must(t, r.subjects[2].Run(time.Millisecond, new(rounds.Times)))
	must(t, r.check())
	r.slots[1].Bytes()[7] ^= 1
	if err := r.check(); !errors.Is(err, errdefs.ErrCorrupt) {
		t.Errorf("%v, want ErrCorrupt", err)
	}
}

// fabric has a software NIC and the simulated device.
func fabric(t *testing.T) *Fabric {
	t.Helper()
	dev, err := sim.Open(sim.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, dev.Close()) })
	n, err := gdr.Open(dev, gdr.Config{Provider: gdr.Soft}, nil)
	must(t, err)
	t.Cleanup(func() { must(t, n.Close(context.Background())) })
	f := &Fabric{Device: dev}
	for _, nic := range []*NIC{&f.Client, &f.Server} {
		d, err := n.OpenDomain()
		must(t, err)
		t.Cleanup(func() { must(t, d.Close()) })
		*nic = NIC{Registry: d.NIC, Connect: d.Connect}
	}
	f.Copies, err = streamcopy.Open(dev, streamcopy.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, f.Copies.Close(context.Background())) })
	return f
}

// With a fabric, retrieves by RDMA to pinned and to device memory are measured and compared.
func TestRunMeasuresRDMA(t *testing.T) {
	f := fabric(t)
	r, err := Run(t.Context(), Options{Sizes: []int64{4096, 100_000}, Depths: []int{1, 8}, Rounds: 1, Duration: time.Millisecond, Fabric: f})
	must(t, err)
	count := make(map[string]int)
	for _, p := range r.Points {
		count[p.Subject]++
	}
	if count[RDMA] != 4 || count[Device] != 2 || count[TCP] != 4 {
		t.Errorf("points by subject %v", count)
	}
}

// Wrong bytes in device memory, and pieces that passed over the socket, fail the run.
func TestWrongBytesByRDMAFail(t *testing.T) {
	f := fabric(t)
	r, err := open(t.Context(), 100_000, 2, f)
	must(t, err)
	defer func() { must(t, r.close(t.Context())) }()
	for _, s := range r.subjects[len(r.subjects)-2:] {
		s := asRemote(t, s)
		must(t, s.Run(time.Millisecond, new(rounds.Times)))
		must(t, s.check())
		from := mem.Extent{Region: r.remote.staging, Len: 64}
		k, err := f.Copies.Submit(t.Context(), &mem.Batch{Dst: []mem.Extent{{Region: s.pieces[1].Mem.Region, Off: s.pieces[1].Mem.Off + 9, Len: 64}}, Src: []mem.Extent{from}})
		must(t, err)
		must(t, k.Wait(t.Context()))
		if err := s.check(); !errors.Is(err, errdefs.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", s.name, err)
		}
	}
	s := asRemote(t, r.subjects[len(r.subjects)-2])
	s.pieces[0].Mem = r.slots[0] // not registered
	must(t, s.Run(time.Millisecond, new(rounds.Times)))
	if err := s.check(); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("%v, want ErrNotSupported", err)
	}
}

func asRemote(t *testing.T, s rounds.Subject) *remoteSubject {
	t.Helper()
	r, ok := s.(*remoteSubject)
	if !ok {
		t.Fatalf("%T is not a remote subject", s)
	}
	return r
}
