package share

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
)

// The words of the page by which an exporter tells of its work, each on a line of its own: the number of the last that it has announced, which
// its CPU writes, and of the last that is done, which its device writes. The numbers only ever grow, so that work is done once the second
// has come as far, whatever is announced meanwhile.
const (
	wordAnnounced = 0
	wordDone      = 64
	pageBytes     = 4096
)

// announcer is how an exporter tells of its work.
type announcer struct {
	page   *HostMemory
	queue  device.Queue      // waits for the work
	stream device.HostStream // the queue, as what writes words
	last   uint64            // work that was announced
}

func newAnnouncer(from Source) (*announcer, error) {
	dev, ok := from.(device.StreamAdopter)
	if !ok {
		return nil, fmt.Errorf("%T writes no words behind work: %w", from, errdefs.ErrNotSupported)
	}
	page, err := AllocHost(dev, pageBytes)
	if err != nil {
		return nil, err
	}
	a := &announcer{page: page}
	if a.queue, a.stream, err = openAdopted(dev); err != nil {
		return nil, errors.Join(err, page.Close())
	}
	return a, nil
}

// openAdopted opens a queue that waits for words, or writes them, as a stream of the host program does.
func openAdopted(dev device.StreamAdopter) (device.Queue, device.HostStream, error) {
	q, err := dev.OpenQueue(device.QueueOptions{Events: 1})
	if err != nil {
		return nil, nil, err
	}
	var s device.HostStream
	if named, ok := q.(interface{ Handle() uintptr }); ok {
		s, err = dev.AdoptStream(named.Handle())
	} else {
		err = fmt.Errorf("%T has no native handle: %w", q, errdefs.ErrNotSupported)
	}
	if err != nil {
		return nil, nil, errors.Join(err, q.Close(context.Background())) // which is idle
	}
	return q, s, nil
}

// announce numbers the work, and has the device write the number behind it.
func (a *announcer) announce(work device.Event) error {
	if err := a.queue.Wait(work); err != nil {
		return err
	}
	if err := a.stream.WriteValue(mem.Extent{Region: a.page.Region(), Off: wordDone, Len: 8}, a.last+1); err != nil {
		return err
	}
	a.last++
	hostmem.StoreUint64(a.page.bytes[wordAnnounced:], a.last)
	return nil
}

// close waits for the work. After an error it may be called again.
func (a *announcer) close(ctx context.Context) error {
	if err := a.queue.Close(ctx); err != nil {
		return err
	}
	return a.page.Close()
}
