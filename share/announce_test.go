package share_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/share"
)

// announced is what playAnnouncer's memory holds once its work is done.
const announced = 0x5a

// playAnnouncer exports memory that it fills, by work that does not end before its input has a line, and says so by an announcement.
func playAnnouncer(dir string) error {
	faults := fault.New(1, fault.Nth(sim.OpFill, 0).Stall())
	dev, err := sim.Open(sim.Options{Faults: faults})
	if err != nil {
		return err
	}
	r, err := dev.Alloc(1<<20, device.AllocOptions{Shareable: true})
	if err != nil {
		return err
	}
	s, err := share.NewServer(share.Options{Dir: dir})
	if err != nil {
		return err
	}
	if err := s.Start(context.Background()); err != nil {
		return err
	}
	e, err := s.Export(dev, r)
	if err != nil {
		return err
	}
	q, err := dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(e.Descriptor()); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Scan()
	if err := q.Fill(mem.All(r), announced); err != nil {
		return err
	}
	work, err := q.Record()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, e.Announce(work)); err != nil {
		return err
	}
	work.Close()
	lines.Scan()
	faults.Release()
	if _, err := fmt.Fprintln(os.Stdout, nil); err != nil {
		return err
	}
	lines.Scan()
	return errors.Join(within(q.Close), withdraw(e), within(s.Close), dev.Free(r), dev.Close())
}

// TestAnnouncedWork: what an importer's queue does comes after work of the exporter's that is under way, with no wait on either host. Where
// the exporter dies before its work is done, what waits for it fails.
func TestAnnouncedWork(t *testing.T) {
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprintf("exporter dies %v", dies), func(t *testing.T) {
			other := start(t, "announce", filepath.Join(t.TempDir(), "s"))
			d, err := share.ParseDescriptor([]byte(other.line()))
			must(t, err)
			dev := simDevice(t, sim.Options{Index: 1})
			i := take(t, importer(t, dev), d)
			if _, err := i.Announced(t.Context()); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("nothing was announced: %v", err)
			}
			other.do("work")
			e, err := i.Announced(t.Context())
			must(t, err)
			q, err := dev.OpenQueue(device.QueueOptions{})
			must(t, err)
			p, err := dev.AllocHost(d.Length)
			must(t, err)
			must(t, q.Wait(e))
			must(t, q.Copy(mem.All(p), mem.All(i.Region())))
			copied, err := q.Record()
			must(t, err)
			time.Sleep(20 * time.Millisecond)
			if done, err := copied.Done(); done || err != nil {
				t.Errorf("the copy did not wait: %v, %v", done, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if dies {
				other.kill()
				if err := copied.Wait(ctx); !errors.Is(err, errdefs.ErrLost) {
					t.Errorf("the exporter died: %v", err)
				}
			} else {
				other.do("go on")
				must(t, copied.Wait(ctx))
				for k, b := range p.Bytes() {
					if b != announced {
						t.Fatalf("byte %d is %#x: the copy was too early", k, b)
					}
				}
			}
			copied.Close()
			e.Close()
			if err := within(q.Close); err != nil && !dies {
				t.Error(err)
			}
			must(t, dev.Free(p))
			must(t, i.Close())
			if !dies {
				other.end()
			}
		})
	}
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
