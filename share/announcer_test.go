package share_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
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
		if err := a.waitFor(1); err != nil {
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

	theirs *share.Work
	copied device.Event
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
	must(t, f.queue.Wait(f.theirs.Event()))
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

// ownAnnouncer is one in this process, whose stream waits until its word is set, and an import of what it exports.
func ownAnnouncer(t *testing.T) (*announcer, *sim.Device, *share.Import) {
	t.Helper()
	exporter, dev := simDevice(t, sim.Options{}), simDevice(t, sim.Options{Index: 1})
	e, r := exported(t, serve(t, share.Options{}), exporter, 4096)
	a := &announcer{dev: exporter, memory: []sharedMemory{{exporter, r}}, exports: []*share.Export{e}}
	must(t, a.open())
	t.Cleanup(func() {
		hostmem.StoreUint64(a.word.Bytes(), 1<<62)
		must(t, errors.Join(within(a.program.Close), exporter.Free(a.word)))
	})
	return a, dev, take(t, importer(t, dev), e.Descriptor())
}

func (a *announcer) waitFor(word uint64) error {
	return a.stream.WaitValue(mem.Extent{Region: a.word, Len: 8}, word)
}
