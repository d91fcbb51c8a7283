package copy_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device/cuda/cudatest"

	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/stream/streamtest"
)

func TestConformanceResident(t *testing.T) {
	for name, o := range map[string]streamcopy.ResidentOptions{
		"restless": {Workers: 3, Lease: 200 * time.Microsecond, Idle: 10 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				return simEnv(t, sim.Options{}, streamcopy.Options{Path: stream.PathResident, Resident: o})
			})
		})
	}
	t.Run("interleaved", func(t *testing.T) {
		streamtest.Run(t, func(t *testing.T) streamtest.Env {
			t.Helper()
			return simEnv(t, sim.Options{Interleave: &sim.Interleave{Seed: 3}}, streamcopy.Options{Path: stream.PathResident, Resident: streamcopy.ResidentOptions{Workers: 1}})
		})
	})
}

func TestConformanceResidentCUDA(t *testing.T) {
	dev := cudatest.Open(t)
	for name, o := range map[string]streamcopy.ResidentOptions{
		"restless": {Workers: 3, Lease: 200 * time.Microsecond, Idle: 10 * time.Microsecond},
	} {
		t.Run(name, func(t *testing.T) {
			streamtest.Run(t, func(t *testing.T) streamtest.Env {
				t.Helper()
				return env(t, dev, streamcopy.Options{Path: stream.PathResident, Resident: o})
			})
		})
	}
}

// residentStream opens a stream whose batches are all resident.
func residentStream(t *testing.T, so sim.Options, o streamcopy.Options) (*sim.Device, *streamcopy.Stream) {
	t.Helper()
	dev := openSim(t, so)
	o.Path = stream.PathResident
	s := open(t, dev, o)
	t.Cleanup(func() { closeStream(t, s) })
	return dev, s
}

func submitOK(t *testing.T, s *streamcopy.Stream, b *mem.Batch) *stream.Ticket {
	t.Helper()
	ticket, err := s.Submit(deadline(t), b)
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

// TestResidentComesAndGoes pauses for random times between batches, around the idle limit and the lease, so that entries
// are written at every moment of a kernel's life, also of its last.
func TestResidentComesAndGoes(t *testing.T) {
	for seed := range uint64(2) {
		rng := rand.New(rand.NewPCG(seed, 7))
		dev, s := residentStream(t, sim.Options{}, streamcopy.Options{
			Resident: streamcopy.ResidentOptions{Idle: 20 * time.Microsecond, Lease: 150 * time.Microsecond},
		})
		dst, src := pinned(t, dev, 1<<20), pinned(t, dev, 1<<20)
		for i := range 150 {
			n := 1 + rng.IntN(40)
			b := streamtest.Strided(dst, src, n, 100)
			for j := range b.Src {
				b.Src[j].Bytes()[0] = byte(i + j)
			}
			ticket := submitOK(t, s, b)
			if rng.IntN(3) == 0 { // some finish on their own
				time.Sleep(time.Duration(rng.IntN(200)) * time.Microsecond)
			}
			if err := ticket.Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
			for j := range b.Dst {
				if got := b.Dst[j].Bytes()[0]; got != byte(i+j) {
					t.Fatalf("seed %d, batch %d, copy %d: %d, want %d", seed, i, j, got, byte(i+j))
				}
			}
			if rng.IntN(2) == 0 {
				time.Sleep(time.Duration(rng.IntN(40)) * time.Microsecond)
			}
		}
	}
}

// TestResidentBatchNeedsNobody: a batch is done though nobody waits for its ticket, also if the kernel left without it.
func TestResidentBatchNeedsNobody(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 9))
	dev, s := residentStream(t, sim.Options{}, streamcopy.Options{
		Resident: streamcopy.ResidentOptions{Idle: 5 * time.Microsecond, Lease: 50 * time.Microsecond},
	})
	dst, src := pinned(t, dev, 8), pinned(t, dev, 8)
	for i := range uint64(500) {
		hostmem.StoreUint64(src.Bytes(), i+1)
		ticket := submitOK(t, s, &mem.Batch{Dst: []mem.Extent{{Region: dst, Len: 8}}, Src: []mem.Extent{{Region: src, Len: 8}}})
		for end := time.Now().Add(patience); hostmem.LoadUint64(dst.Bytes()) != i+1; time.Sleep(time.Microsecond) {
			if time.Now().After(end) {
				t.Fatalf("batch %d was not done while nobody waited for it", i)
			}
		}
		if err := ticket.Wait(deadline(t)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rng.IntN(60)) * time.Microsecond)
	}
}

// TestResidentLeaseEndsDuringABatch: the batch is longer than the lease, and its kernels are launched again and again.
func TestResidentLeaseEndsDuringABatch(t *testing.T) {
	plan := fault.New(1)
	dev, s := residentStream(t, sim.Options{Faults: plan}, streamcopy.Options{
		Resident: streamcopy.ResidentOptions{Lease: 10 * time.Microsecond},
	})
	const n = 10_000
	dst, src := pinned(t, dev, n*9), pinned(t, dev, n*9)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i * 13)
	}
	b := streamtest.Strided(dst, src, n, 8)
	if err := submitOK(t, s, b).Wait(deadline(t)); err != nil {
		t.Fatal(err)
	}
	for i := range b.Dst {
		if string(b.Dst[i].Bytes()) != string(b.Src[i].Bytes()) {
			t.Fatalf("copy %d did not happen", i)
		}
	}
	if n := plan.Seen(sim.OpLaunch); n < 4 {
		t.Errorf("%d launches: the lease never ended", n)
	}
}

// TestResidentOrderWithOthers sends bytes through a chain of regions, by turns resident and by queue, none waited for but
// the last.
func TestResidentOrderWithOthers(t *testing.T) {
	dev := openSim(t, sim.Options{})
	s := open(t, dev, streamcopy.Options{Planner: byTurns{resident: 64 << 10}})
	defer closeStream(t, s)
	regions := make([]*mem.Region, 5)
	for i := range regions {
		regions[i] = pinned(t, dev, 1<<20)
	}
	rng := rand.New(rand.NewPCG(5, 5))
	want := make([]byte, 1<<20)
	for i := range want {
		want[i] = byte(rng.Uint32())
	}
	copy(regions[0].Bytes(), want)
	var last *stream.Ticket
	seen := make(map[stream.Path]int)
	for i := range 200 {
		n := int64(1) << (10 + rng.IntN(11)) // 1 KiB to 1 MiB
		at := rng.Int64N(1<<20 - n + 1)
		from, to := regions[i%5], regions[(i+1)%5]
		_ = at
		ticket := submitOK(t, s, &mem.Batch{
			Dst: []mem.Extent{mem.All(to)}, Src: []mem.Extent{mem.All(from)},
		})
		small := submitOK(t, s, &mem.Batch{
			Dst: []mem.Extent{{Region: to, Off: at, Len: min(n, 16<<10)}}, Src: []mem.Extent{{Region: from, Off: at, Len: min(n, 16<<10)}},
		})
		last = small
		if rng.IntN(8) == 0 {
			if err := ticket.Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
			if err := small.Wait(deadline(t)); err != nil {
				t.Fatal(err)
			}
			seen[ticket.Completion().Path]++
			seen[small.Completion().Path]++
		}
	}
	if err := last.Wait(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if string(regions[200%5].Bytes()) != string(want) {
		t.Error("the bytes did not come through")
	}
	if seen[stream.PathResident] == 0 || seen[stream.PathCopyEngine] == 0 {
		t.Errorf("paths taken: %v", seen)
	}
}

// byTurns sends batches of at most so many bytes by resident kernels and the others by copy engine.
type byTurns struct{ resident int64 }

func (p byTurns) Choose(r plan.Request, can plan.Paths) plan.Choice {
	if r.Bytes <= p.resident && can.Has(stream.PathResident) {
		return plan.Choice{Path: stream.PathResident}
	}
	return plan.Choice{Path: stream.PathCopyEngine}
}

func (byTurns) Observe(plan.Choice, plan.Request, time.Duration) {}

// TestResidentKernelDies: the device fails the kernel in the middle. The ticket says so, and its memory is not touched any
// more; the stream is broken.
func TestResidentKernelDies(t *testing.T) {
	cause := errors.New("row remapping pending")
	for name, rule := range map[string]fault.Rule{
		"at its start":       fault.Nth(sim.OpLaunch, 0).Fail(cause),
		"when it came again": fault.Nth(sim.OpLaunch, 1).Fail(cause),
		"call":               fault.Nth(sim.OpCallLaunch, 0).Fail(cause),
		"call, again":        fault.Nth(sim.OpCallLaunch, 1).Fail(cause),
		"event":              fault.Nth(sim.OpRecord, 0).Fail(cause),
	} {
		t.Run(name, func(t *testing.T) {
			dev := openSim(t, sim.Options{Faults: fault.New(1, rule)})
			s := open(t, dev, streamcopy.Options{Path: stream.PathResident, Resident: streamcopy.ResidentOptions{Idle: 50 * time.Microsecond}})
			dst, src := pinned(t, dev, 1000), pinned(t, dev, 1000)
			var err error
			for i := 0; err == nil && i < 100; i++ {
				var ticket *stream.Ticket
				if ticket, err = s.Submit(deadline(t), streamtest.Strided(dst, src, 1, 100)); err == nil {
					err = ticket.Wait(deadline(t))
				}
				time.Sleep(300 * time.Microsecond)
			}
			if !errors.Is(err, cause) {
				t.Fatalf("ticket: %v", err)
			}
			if _, err := s.Submit(deadline(t), streamtest.Strided(dst, src, 1, 100)); !errors.Is(err, errdefs.ErrBroken) || !errors.Is(err, cause) {
				t.Errorf("submit afterwards: %v", err)
			}
			noLateWrites(t, dst)
			err = s.Close(deadline(t))
			if err != nil && !errors.Is(err, cause) {
				t.Error(err)
			}
		})
	}
}

// TestResidentStall: a kernel that does not start keeps its entries' tickets unresolved, cancelled or not.
func TestResidentStall(t *testing.T) {
	plan := fault.New(1, fault.Nth(sim.OpLaunch, 0).Stall())
	dev, s := residentStream(t, sim.Options{Faults: plan}, streamcopy.Options{})
	dst, src := pinned(t, dev, 1000), pinned(t, dev, 1000)
	first, second := submitOK(t, s, streamtest.Strided(dst, src, 1, 100)), submitOK(t, s, streamtest.Strided(dst, src, 2, 100))
	if err := plan.Await(deadline(t), 1); err != nil {
		t.Fatal(err)
	}
	first.Cancel()
	second.Cancel()
	select {
	case <-first.Done():
		t.Fatalf("resolved while a kernel may take its entry: %v", first.Err())
	case <-time.After(20 * time.Millisecond):
	}
	plan.Release()
	for _, ticket := range []*stream.Ticket{first, second} {
		if err := ticket.Wait(deadline(t)); err != nil && !errors.Is(err, errdefs.ErrCanceled) {
			t.Error(err)
		}
	}
	noLateWrites(t, dst)
}

// TestResidentShares: a batch gets as many workers as it keeps busy. Submit itself posts its entries if the stream is idle.
func TestResidentShares(t *testing.T) {
	faults := fault.New(1)
	dev, s := residentStream(t, sim.Options{Faults: faults}, streamcopy.Options{})
	host, gpu := pinned(t, dev, 1<<20), deviceMemory(t, dev, 1<<20)
	for _, tt := range []struct {
		n    int
		size int64
		want int64
	}{
		{1, 4 << 10, 1},
		{16, 4 << 10, 1},
		{32, 4 << 10, 2},
		{64, 4 << 10, 4},
		{100, 4 << 10, 4},
		{64, 100, 1},
		{1, 512 << 10, 4},
		{20, 100, 1},
		{21, 100, 1},
		{80, 4 << 10, 4},
		{81, 4 << 10, 4},
	} {
		before, launched := faults.Seen(sim.OpEntry), faults.Seen(sim.OpCallLaunch)
		ticket := submitOK(t, s, apart(host, gpu, min(tt.n, int(1<<19/tt.size)), tt.size))
		if launched == 0 && faults.Seen(sim.OpCallLaunch) != 1 {
			t.Error("Submit returned before the entry was posted")
		}
		if err := ticket.Wait(deadline(t)); err != nil {
			t.Fatal(err)
		}
		if got := faults.Seen(sim.OpEntry) - before; got != tt.want {
			t.Errorf("%d pieces of %d bytes: %d entries, want %d", tt.n, tt.size, got, tt.want)
		}
	}
}

// TestResidentUnevenPieces: what is left when entries are full, since the last pieces are many and small, goes by further
// entries; and a list may be followed by pages.
func TestResidentUnevenPieces(t *testing.T) {
	faults := fault.New(1)
	dev, s := residentStream(t, sim.Options{Faults: faults}, streamcopy.Options{})
	dst, src := pinned(t, dev, 1<<20), pinned(t, dev, 1<<20)
	rng := rand.New(rand.NewPCG(4, 2))
	for _, tt := range []struct {
		large, small, empty int
		entries             int64
	}{{14, 60, 0, 7}, {15, 1, 0, 4}, {1, 19, 7, 1}, {0, 20, 40, 1}, {3, 0, 0, 1}, {18, 61, 3, 7}} {
		b := new(mem.Batch)
		off := int64(0)
		add := func(n int64) {
			b.Dst = append(b.Dst, mem.Extent{Region: dst, Off: off, Len: n})
			b.Src = append(b.Src, mem.Extent{Region: src, Off: off, Len: n})
			off += n + 8
		}
		for range tt.large {
			add(16 << 10)
		}
		for i := range max(tt.small, tt.empty) {
			if i < tt.empty {
				add(0)
			}
			if i < tt.small {
				add(1 + rng.Int64N(1000))
			}
		}
		for i := range src.Bytes() {
			src.Bytes()[i] = byte(rng.Uint32())
		}
		before := faults.Seen(sim.OpEntry)
		if err := submitOK(t, s, b).Wait(deadline(t)); err != nil {
			t.Fatal(err)
		}
		for i := range b.Dst {
			if string(b.Dst[i].Bytes()) != string(b.Src[i].Bytes()) {
				t.Fatalf("%+v: piece %d is not what it should be", tt, i)
			}
		}
		if got := faults.Seen(sim.OpEntry) - before; got != tt.entries {
			t.Errorf("%+v: %d entries, want %d", tt, got, tt.entries)
		}
	}
}

// free has dev free some memory, which waits for the kernels that run, and returns how long that took.
func free(t *testing.T, dev *sim.Device) time.Duration {
	t.Helper()
	r, err := dev.AllocHost(64)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	begun := time.Now()
	go func() { done <- dev.Free(r) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("memory cannot be freed: a kernel does not leave")
	}
	return time.Since(begun)
}

// TestResidentGuestManners: whoever synchronises with the device waits for a resident kernel no longer than until it has
// nothing to do, or until its lease is over; also if the host stops attending to it, as one does that was killed.
func TestResidentGuestManners(t *testing.T) {
	const long = time.Hour
	t.Run("leaves when idle", func(t *testing.T) {
		faults := fault.New(1)
		dev, s := residentStream(t, sim.Options{Faults: faults}, streamcopy.Options{
			Resident: streamcopy.ResidentOptions{Idle: time.Millisecond, Lease: long},
		})
		dst, src := pinned(t, dev, 4096), pinned(t, dev, 4096)
		for range 2 {
			complete(t, s, streamtest.Strided(dst, src, 1, 100))
			free(t, dev)
		}
		if n := faults.Seen(sim.OpLaunch); n != 2 {
			t.Errorf("%d launches, want one before each pause", n)
		}
	})
	t.Run("leaves a host that does not attend", func(t *testing.T) {
		dev, s := residentStream(t, sim.Options{}, streamcopy.Options{Resident: streamcopy.ResidentOptions{Lease: 5 * time.Millisecond, Idle: long}})
		dst, src := pinned(t, dev, 4096), pinned(t, dev, 4096)
		ticket := submitOK(t, s, streamtest.Strided(dst, src, 1, 100)) // and never looked at
		free(t, dev)
		if err := ticket.Wait(deadline(t)); err != nil {
			t.Error(err)
		}
	})
	t.Run("is stopped before memory is freed", func(t *testing.T) {
		dev := openSim(t, sim.Options{})
		dst, src := pinned(t, dev, 1<<20), deviceMemory(t, dev, 1<<20)
		s := open(t, dev, streamcopy.Options{
			Planner: newDice(3), Resident: streamcopy.ResidentOptions{Lease: long, Idle: long}, StagingBytes: 1 << 20,
		})
		seen := make(map[stream.Path]bool)
		for range 60 {
			seen[complete(t, s, apart(dst, src, 40, 4<<10)).Path] = true
		}
		if !seen[stream.PathResident] || !seen[stream.PathStaged] {
			t.Errorf("paths taken: %v", seen)
		}
		begun := time.Now()
		closeStream(t, s) // frees rings and staging memory, and would wait for an hour
		if took := time.Since(begun); took > patience/2 {
			t.Errorf("closing took %v", took)
		}
	})
}

// TestResidentLeavesWhenBusy: the lease ends, however much there is to do, and the work goes on after that.
func TestResidentLeavesWhenBusy(t *testing.T) {
	const lease = 5 * time.Millisecond
	dev, s := residentStream(t, sim.Options{}, streamcopy.Options{Resident: streamcopy.ResidentOptions{Idle: lease, Lease: lease}})
	dst, src := pinned(t, dev, 4096), pinned(t, dev, 4096)
	stop, stopped := make(chan struct{}), make(chan error, 1)
	copied := 0
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			ticket, err := s.Submit(t.Context(), streamtest.Strided(dst, src, 1, 100))
			if err == nil {
				err = ticket.Wait(t.Context())
			}
			if err != nil {
				stopped <- err
				return
			}
			copied++
		}
	}()
	least := patience
	for begun := time.Now(); time.Since(begun) < 10*lease || least > 20*lease && time.Since(begun) < patience; { // on a busy machine one may take longer
		time.Sleep(lease / 10)
		least = min(least, free(t, dev))
	}
	close(stop)
	if err := <-stopped; err != nil || copied == 0 {
		t.Errorf("%d batches, then %v", copied, err)
	}
	if least > 20*lease {
		t.Errorf("freeing memory took %v at least, with leases of %v", least, lease)
	}
}
