package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
)

// tryTimeout bounds each wait of Try for the device.
const tryTimeout = 10 * time.Second

// Open opens the storage of dev. It returns ErrNotSupported if dev reaches no files.
func Open(dev device.Device, o device.StorageOptions) (device.Storage, error) {
	opener, ok := dev.(device.StorageOpener)
	if !ok {
		return nil, fmt.Errorf("the device cannot read files: %w", errdefs.ErrNotSupported)
	}
	return opener.OpenStorage(o) // its errors name the operation
}

// TrialPrefix begins the names of the files of Try. A killed process may leave such a file. Tiers
// take it for an unfinished marker of their directory, which they ignore.
const TrialPrefix = "kvlane.json.tmp.direct-"

// Try writes a page of dev's memory to a new file in dir, reads it back, and removes the file. It
// returns the mode of the file. st is the storage of dev.
func Try(ctx context.Context, dev device.Device, st device.Storage, dir string) (mode device.StorageMode, err error) {
	f, err := os.CreateTemp(dir, TrialPrefix+"*")
	if err != nil {
		return mode, fmt.Errorf("not tried: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	// If the file system does not support O_DIRECT, the mode shows that.
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags|unix.O_DIRECT)
	}
	sf, err := st.Register(int(f.Fd()))
	if err != nil {
		return mode, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTimeout)
		defer cancel()
		err = errors.Join(err, sf.Close(ctx))
	}()
	return sf.Mode(), writeAndRead(ctx, dev, sf)
}

// writeAndRead writes a page of device memory to a file, reads it into another page, and compares
// them.
func writeAndRead(ctx context.Context, dev device.Device, sf device.StorageFile) (err error) {
	const page = device.StorageAlign
	host, err := dev.AllocHost(2 * page)
	if err != nil {
		return fmt.Errorf("allocate pinned memory: %w", err)
	}
	defer func() { err = errors.Join(err, dev.Free(host)) }()
	gpu, err := dev.Alloc(2*page, device.AllocOptions{})
	if err != nil {
		return fmt.Errorf("allocate device memory: %w", err)
	}
	defer func() { err = errors.Join(err, dev.Free(gpu)) }()
	half := func(r *mem.Region, i int64) mem.Extent { return mem.Extent{Region: r, Off: i * page, Len: page} }
	want := host.Bytes()[:page]
	for i := range want {
		want[i] = byte(device.Mix64(uint64(i)))
	}
	if err := copyNow(ctx, dev, half(gpu, 0), half(host, 0)); err != nil {
		return err
	}
	for i, move := range []func(mem.Extent, int64) (int64, error){sf.Write, sf.Read} {
		n, err := move(half(gpu, int64(i)), 0)
		if err != nil {
			return err
		}
		if n != page {
			return fmt.Errorf("%d bytes of %d were moved", n, page)
		}
	}
	if err := copyNow(ctx, dev, half(host, 1), half(gpu, 1)); err != nil {
		return err
	}
	if !bytes.Equal(want, host.Bytes()[page:]) {
		return errors.New("read back wrong bytes")
	}
	return nil
}

// copyNow copies on a new queue and waits.
func copyNow(ctx context.Context, dev device.Device, dst, src mem.Extent) error {
	q, err := dev.OpenQueue(device.QueueOptions{})
	if err != nil {
		return fmt.Errorf("open queue: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	return errors.Join(q.Copy(dst, src), q.Close(ctx))
}
