package share_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

// What playAnnouncer's memory holds once work of its is done: what it has at first, and what it has only when it is told to go on.
const (
	announcedEarly = 0xa5
	announcedLate  = 0x5a
)

// announcer is a process that exports memory and announces work on it. A stream of the host program's does the work, which a word can hold.
type announcer struct {
	dev     device.Sharer
	memory  []sharedMemory
	exports []*share.Export
	program device.Queue
	stream  device.HostStream
	word    *mem.Region
}

// playAnnouncer exports device memory in that directory, of a simulated device or of the GPU of that index, and does what it is told on its
// input: "early" announces work, "late" announces more that does not begin before "go on".
func playAnnouncer(args []string) (err error) {
	dev, all, free, err := exporterMemory(1<<20, args[1:])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, free()) }()
	all = slices.DeleteFunc(all, func(m sharedMemory) bool { return m.region.Kind() != mem.KindDevice })
	s, err := share.NewServer(share.Options{Dir: args[0]})
	if err != nil {
		return err
	}
	if err := s.Start(context.Background()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, within(s.Close)) }()
	a := &announcer{dev: dev, memory: all}
	out := json.NewEncoder(os.Stdout)
	for _, m := range all {
		e, err := s.Export(m.Source, m.region)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, withdraw(e)) }()
		a.exports = append(a.exports, e)
		if err := out.Encode(e.Descriptor()); err != nil {
			return err
		}
	}
	if err := a.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, within(a.program.Close), dev.Free(a.word)) }()
	if _, err := fmt.Fprintln(os.Stdout); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if _, err := fmt.Fprintln(os.Stdout, a.do(lines.Text())); err != nil {
			return err
		}
	}
	return lines.Err()
}

// open makes ahead what the work needs: a driver may hold up who makes it while a stream of the program waits.
func (a *announcer) open() (err error) {
	if a.program, err = a.dev.OpenQueue(device.QueueOptions{Events: 4}); err != nil {
		return err
	}
	adopter, ok := a.dev.(device.StreamAdopter)
	h, plays := a.program.(interface{ Handle() uintptr })
	if !ok || !plays {
		return fmt.Errorf("%T adopts no streams", a.dev)
	}
	if a.stream, err = adopter.AdoptStream(h.Handle()); err != nil {
		return err
	}
	a.word, err = a.dev.AllocHost(64)
	return err
}

func (a *announcer) do(what string) error {
	switch what {
	case "early":
		return a.work(announcedEarly)
	case "late":
		if err := a.stream.WaitValue(mem.Extent{Region: a.word, Len: 8}, 1); err != nil {
			return err
		}
		return a.work(announcedLate)
	case "go on":
		hostmem.StoreUint64(a.word.Bytes(), 1)
		return nil
	}
	return fmt.Errorf("no work %q", what)
}

// work fills the memory, and announces that.
func (a *announcer) work(v byte) error {
	for _, m := range a.memory {
		if err := a.program.Fill(mem.All(m.region), v); err != nil {
			return err
		}
	}
	done, err := a.program.Record()
	if err != nil {
		return err
	}
	defer done.Close()
	for _, e := range a.exports {
		err = errors.Join(err, e.Announce(done))
	}
	return err
}

// follower has what an importer copies behind work that was announced.
type follower struct {
	*share.Import
	queue  device.Queue
	pinned *mem.Region

	theirs, copied device.Event
}

// followers import all, with all that it takes to copy them.
func followers(t *testing.T, in *share.Importer, dev device.Device, all []share.Descriptor) (fs []*follower) {
	t.Helper()
	for _, d := range all {
		f := &follower{Import: take(t, in, d)}
		var err error
		f.queue, err = dev.OpenQueue(device.QueueOptions{Events: 4})
		must(t, err)
		f.pinned, err = dev.AllocHost(d.Length)
		must(t, err)
		fs = append(fs, f)
	}
	return fs
}

// follow enqueues a copy of the memory behind what was announced.
func (f *follower) follow(t *testing.T) {
	t.Helper()
	var err error
	f.theirs, err = f.Announced(t.Context())
	must(t, err)
	must(t, f.queue.Wait(f.theirs))
	must(t, f.queue.Copy(mem.All(f.pinned), mem.All(f.Region())))
	f.copied, err = f.queue.Record()
	must(t, err)
}

// end waits for the copy.
func (f *follower) end() error {
	defer f.theirs.Close()
	defer f.copied.Close()
	return within(f.copied.Wait)
}

// has wants every byte of what was copied to be v.
func (f *follower) has(t *testing.T, v byte) {
	t.Helper()
	for k, b := range f.pinned.Bytes() {
		if b != v {
			t.Fatalf("%s: byte %d is %#x, not %#x: the copy was too early", f.Descriptor().Type, k, b, v)
		}
	}
}

func (f *follower) close(dev device.Device) error {
	return errors.Join(within(f.queue.Close), dev.Free(f.pinned), f.Close())
}

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

// TestAnnouncerDies: where the exporter dies before its work is done, what waits for it fails.
func TestAnnouncerDies(t *testing.T) {
	dev := simDevice(t, sim.Options{Index: 1})
	for _, f := range leftBehind(t, dev, start(t, "announce", filepath.Join(t.TempDir(), "s"))) {
		if err := f.end(); !errors.Is(err, errdefs.ErrLost) {
			t.Errorf("the exporter died: %v", err)
		}
		lost(t, f.Import)
		if err := within(f.queue.Close); err != nil {
			t.Logf("the queue that waited: %v", err)
		}
		must(t, errors.Join(dev.Free(f.pinned), f.Close()))
	}
}

// leftBehind kills the other process while dev waits for its work, and returns who waits.
func leftBehind(t *testing.T, dev device.Device, other *process) []*follower {
	t.Helper()
	fs := followers(t, importer(t, dev), dev, other.descriptors())
	other.do("early") // makes what announcements take
	for _, f := range fs {
		f.follow(t)
		must(t, f.end())
	}
	other.do("late")
	for _, f := range fs {
		f.follow(t)
	}
	other.kill()
	return fs
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

// TestDefectAnnouncedEventIsTakenAway: an exporter that withdraws its memory keeps what it has announced until importers have closed their
// events of it: CUDA leaves undefined what an event does whose maker has destroyed it.
func TestDefectAnnouncedEventIsTakenAway(t *testing.T) {
	exporter := simDevice(t, sim.Options{})
	e, _ := exported(t, serve(t, share.Options{}), exporter, 4096)
	q, err := exporter.OpenQueue(device.QueueOptions{})
	must(t, err)
	work, err := q.Record()
	must(t, err)
	must(t, e.Announce(work))
	work.Close()
	must(t, within(q.Close))
	i := take(t, importer(t, simDevice(t, sim.Options{Index: 1})), e.Descriptor())
	theirs, err := i.Announced(t.Context())
	must(t, err)
	holds(t, e, os.Getpid())
	if err := i.Close(); !errors.Is(err, errdefs.ErrBusy) {
		t.Errorf("close an import of which an event is open: %v", err)
	}
	must(t, within(theirs.Wait))
	theirs.Close()
	must(t, withdraw(e))
	must(t, i.Close())
}
