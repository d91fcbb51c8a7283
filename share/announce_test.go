package share_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/leak"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
)

// TestAnnouncedWork: what an importer's queue does comes after work of the exporter's that is under way, with no wait on either host.
func TestAnnouncedWork(t *testing.T) {
	announcedWork(t, simDevice(t, sim.Options{Index: 1}), start(t, "announce", filepath.Join(t.TempDir(), "s")))
}

// announcedWork has dev copy what the other process announces.
func announcedWork(t *testing.T, dev device.Device, other *process) {
	t.Helper()
	all := other.descriptors()
	if len(all) == 0 {
		testkit.Skip(t, gpuShare, "no type of handle works here")
	}
	fs := followers(t, importer(t, dev), dev, all)
	for _, f := range fs {
		if _, err := f.Announced(t.Context()); !errors.Is(err, errdefs.ErrNotFound) {
			t.Errorf("%s: nothing was announced: %v", f.Descriptor().Type, err)
		}
	}
	other.do("early")
	for _, f := range fs {
		f.follow(t)
		must(t, f.end())
		f.has(t, announcedEarly)
	}
	other.do("late")
	for _, f := range fs {
		f.follow(t)
	}
	time.Sleep(50 * time.Millisecond)
	for _, f := range fs {
		if done, err := f.copied.Done(); done || err != nil {
			t.Errorf("%s: the copy did not wait: %v, %v", f.Descriptor().Type, done, err)
		}
	}
	begin := time.Now()
	other.do("go on")
	for _, f := range fs {
		if err := f.end(); err != nil {
			t.Fatalf("%s: %v after the work could go on: %v", f.Descriptor().Type, time.Since(begin), err)
		}
		f.has(t, announcedLate)
		t.Logf("%s: %d bytes were copied behind another process's work", f.Descriptor().Type, f.pinned.Len())
		must(t, f.close(dev))
	}
	other.end()
}

// TestAnnouncerDies: where the exporter dies before its work is done, what waits for it goes on, and is told.
func TestAnnouncerDies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "s")
	announcerDies(t, simDevice(t, sim.Options{Index: 1}), func() *process { return start(t, "announce", dir) })
}

// announcerDies kills an announcer while a queue and a stream of dev wait for its work, and has the queue wait for another's.
func announcerDies(t *testing.T, dev device.Device, announcer func() *process) {
	t.Helper()
	other := announcer()
	all := other.descriptors()
	if len(all) == 0 {
		testkit.Skip(t, gpuShare, "no type of handle works here")
	}
	in := importerWithin(t, dev, 10*time.Second)
	fs := followers(t, in, dev, all)
	s := openStream(t, dev, streamcopy.Options{Path: stream.PathCopyEngine, Prepare: true})
	local, err := dev.Alloc(all[0].Length, device.AllocOptions{})
	must(t, err)
	other.do("early") // makes what announcements take
	for _, f := range fs {
		f.follow(t)
		must(t, f.end())
		must(t, f.theirs.Err())
	}
	other.do("late")
	var tickets []*stream.Ticket
	for _, f := range fs {
		f.follow(t)
		must(t, f.theirs.Precede(t.Context(), s))
		ticket, err := s.Submit(t.Context(), &mem.Batch{Dst: []mem.Extent{mem.All(local)}, Src: []mem.Extent{mem.All(f.Region())}})
		must(t, err)
		tickets = append(tickets, ticket)
	}
	other.kill()
	for k, f := range fs {
		if err := wait(t, tickets[k]); !errors.Is(err, errdefs.ErrLost) {
			t.Errorf("%s: a stream's copy behind work of a dead process: %v", f.Descriptor().Type, err)
		}
		must(t, f.end())
		if err := f.theirs.Err(); !errors.Is(err, errdefs.ErrLost) {
			t.Errorf("%s: work of a dead process: %v", f.Descriptor().Type, err)
		}
		lost(t, f.Import)
		must(t, f.Close())
	}
	other = announcer()
	for k, d := range other.descriptors() {
		fs[k].Import = take(t, in, d)
	}
	other.do("early")
	for _, f := range fs {
		f.follow(t)
		must(t, f.end())
		must(t, f.theirs.Err())
		f.has(t, announcedEarly)
		must(t, f.close(dev))
	}
	other.end()
	must(t, dev.Free(local))
}

// TestAnnouncerStops: an exporter that lives and does nothing is waited for as long as the importer says.
func TestAnnouncerStops(t *testing.T) {
	const most = 300 * time.Millisecond
	dev := simDevice(t, sim.Options{Index: 1})
	other := start(t, "announce", filepath.Join(t.TempDir(), "s"))
	f := followers(t, importerWithin(t, dev, most), dev, other.descriptors())[0]
	other.do("late")
	begin := time.Now()
	f.follow(t)
	must(t, other.cmd.Process.Signal(unix.SIGSTOP))
	must(t, f.end())
	if err, took := f.theirs.Err(), time.Since(begin); !errors.Is(err, errdefs.ErrExpired) || took < most {
		t.Errorf("after %v: %v", took, err)
	}
	must(t, other.cmd.Process.Signal(unix.SIGCONT))
	other.do("go on")
	until(t, "the work is never done", func() bool {
		f.follow(t)
		must(t, f.end())
		return f.theirs.Err() == nil
	})
	f.has(t, announcedLate)
	must(t, f.close(dev))
	other.end()
}

// TestAnnouncersKilledInTurn: nothing is left of those whose work was waited for.
func TestAnnouncersKilledInTurn(t *testing.T) {
	n := 200
	if testing.Short() || raceEnabled {
		n = 10
	}
	dir, dev := filepath.Join(t.TempDir(), "s"), simDevice(t, sim.Options{Index: 1})
	in := importer(t, dev)
	q, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	var files, mapped, goroutines int
	var live map[string]int64
	for k := range n + 1 {
		other := start(t, "announce", dir)
		i := take(t, in, other.descriptors()[0])
		other.do("late")
		w, err := i.Announced(t.Context())
		must(t, err)
		must(t, q.Wait(w.Event()))
		other.kill()
		select {
		case <-w.Done():
		case <-time.After(patience):
			t.Fatal("work of a dead process is waited for")
		}
		if err := w.Err(); !errors.Is(err, errdefs.ErrLost) {
			t.Fatalf("work of a dead process: %v", err)
		}
		w.Close()
		must(t, i.Close())
		if k == 0 { // what the first has made stays for all
			files, mapped, goroutines, live = descriptors(t), mappings(t), runtime.NumGoroutine(), leak.Live()
		}
	}
	until(t, "files, mappings, goroutines, queues or events are left", func() bool {
		return descriptors(t) <= files && mappings(t) <= mapped && runtime.NumGoroutine() <= goroutines && maps.Equal(leak.Live(), live)
	})
	must(t, within(q.Close))
}

// TestDefectAnnouncingAgainHoldsUpImporters: an importer waits for what was announced when it asked. An interprocess event of CUDA's stands for
// what was recorded last, so that who always has work under way would never be seen done.
func TestDefectAnnouncingAgainHoldsUpImporters(t *testing.T) {
	a, _, i := ownAnnouncer(t)
	var works []*share.Work
	for word := range uint64(3) {
		must(t, a.waitFor(word+1))
		must(t, a.work(1))
		w, err := i.Announced(t.Context())
		must(t, err)
		works = append(works, w)
	}
	for k, w := range works {
		if done, err := w.Event().Done(); done {
			t.Errorf("work %d is done before it has begun: %v, %v", k, err, w.Err())
		}
		hostmem.StoreUint64(a.word.Bytes(), uint64(k+1))
		must(t, within(w.Event().Wait))
		must(t, w.Err())
		w.Close()
	}
	must(t, i.Close())
}

// TestWorkClosedEarly: who waits on the device goes on waiting when the work is closed, and nothing that this takes is gone before.
func TestWorkClosedEarly(t *testing.T) {
	a, dev, i := ownAnnouncer(t)
	q, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	must(t, a.waitFor(1))
	must(t, a.work(1))
	w, err := i.Announced(t.Context())
	must(t, err)
	must(t, q.Wait(w.Event()))
	after, err := q.Record()
	must(t, err)
	w.Close()
	w.Close()
	time.Sleep(20 * time.Millisecond)
	if done, err := after.Done(); done {
		t.Errorf("the queue does not wait for work that was closed: %v", err)
	}
	must(t, i.Close()) // which ends the wait
	must(t, within(after.Wait))
	if err := w.Err(); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("work of an import that was closed: %v", err)
	}
	after.Close()
	must(t, within(q.Close))
}

// TestAnnounceRefuses: memory of the host has no device whose work there is, and what was withdrawn has nothing to announce.
func TestAnnounceRefuses(t *testing.T) {
	dev, s := simDevice(t, sim.Options{}), serve(t, share.Options{})
	h, err := share.AllocHost(nil, 4096)
	must(t, err)
	eh, err := s.Export(h, h.Region())
	must(t, err)
	q, err := dev.OpenQueue(device.QueueOptions{})
	must(t, err)
	work, err := q.Record()
	must(t, err)
	if err := eh.Announce(work); !errors.Is(err, errdefs.ErrNotSupported) {
		t.Errorf("memory of the host: %v", err)
	}
	must(t, errors.Join(withdraw(eh), h.Close()))
	e, _ := exported(t, s, dev, 4096)
	must(t, e.Announce(work))
	i := take(t, importer(t, simDevice(t, sim.Options{Index: 1})), e.Descriptor())
	must(t, withdraw(e))
	if err := e.Announce(work); !errors.Is(err, errdefs.ErrClosed) {
		t.Errorf("after it was withdrawn: %v", err)
	}
	lost(t, i)
	if _, err := i.Announced(t.Context()); !errors.Is(err, errdefs.ErrLost) {
		t.Errorf("of lost memory: %v", err)
	}
	must(t, i.Close())
	work.Close()
	must(t, within(q.Close))
}

// TestAnnouncedWorkHoldsTheMemory: an importer that has work of an export open may have copies behind it under way, so that the memory stays.
func TestAnnouncedWorkHoldsTheMemory(t *testing.T) {
	a, _, i := ownAnnouncer(t)
	must(t, a.work(1))
	w, err := i.Announced(t.Context())
	must(t, err)
	must(t, within(w.Event().Wait))
	must(t, w.Err())
	holds(t, a.exports[0], os.Getpid())
	if err := i.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close an import of which work is open: %v", err)
	}
	w.Close()
	must(t, withdraw(a.exports[0]))
	must(t, i.Close())
}
