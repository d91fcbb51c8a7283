package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/file"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/doctor"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
	streamcopy "github.com/kvlane/kvlane/stream/copy"
	streamfile "github.com/kvlane/kvlane/stream/file"
)

// fileStreams opens the file streams to measure.
type fileStreams struct {
	dir     string
	dev     device.Device  // nil: only host memory
	storage device.Storage // access of the device to files; nil: none
	missing []bench.Missing
	mode    *file.CuFileMode // mode of files that were closed

	direct            streamfile.Direct
	transfers, queues int
}

// contenders returns each path to files, and the stream's automatic choice.
func (f *fileStreams) contenders(ctx context.Context) []file.Contender {
	var all []file.Contender
	paths := []stream.Path{stream.PathPosix, stream.PathURing, stream.PathCuFile, stream.PathNone}
	switch f.direct {
	case streamfile.DirectRequire:
		paths = paths[2:]
	case streamfile.DirectNever:
		paths = slices.Delete(paths, 2, 3)
	case streamfile.DirectAuto:
	}
	for _, p := range paths {
		c := file.Contender{Name: p.String(), Open: func(ctx context.Context) (stream.Stream, error) { return f.openStream(ctx, p) }}
		if p == stream.PathCuFile {
			if !f.openStorage(ctx, f.dir) {
				continue
			}
			c.Ends = []file.End{file.Device}
		}
		if p == stream.PathNone {
			c.Name = bench.Auto
		}
		all = append(all, c)
	}
	return all
}

// openStorage opens the access of the device to files, and reports whether it supports all dirs.
func (f *fileStreams) openStorage(ctx context.Context, dirs ...string) bool {
	opener, ok := f.dev.(device.StorageOpener)
	if !ok {
		return false
	}
	probe := doctor.ProbeStorage(ctx, f.dev, dirs)
	err := probe.Err
	for i, d := range probe.Dirs {
		if err == nil && d.Err != nil {
			if err = fmt.Errorf("in directory %s: %w", dirs[i], d.Err); d.Remedy != "" {
				err = fmt.Errorf("%w; remedy: %s", err, d.Remedy)
			}
		}
	}
	if err == nil {
		f.storage, err = opener.OpenStorage(device.StorageOptions{})
	}
	if err != nil {
		f.missing = append(f.missing, bench.Missing{Path: stream.PathCuFile.String(), Reason: err.Error()})
	}
	return err == nil
}

// openStream opens a stream with a fixed path, or with automatic choice; for the latter it first
// measures the directory.
func (f *fileStreams) openStream(ctx context.Context, p stream.Path) (_ stream.Stream, err error) {
	o := streamfile.Options{
		Path: p, Direct: f.direct, Transfers: f.transfers, Device: f.dev, CuFile: streamfile.CuFileOptions{Storage: f.storage, Queues: f.queues},
	}
	if f.dev != nil {
		if o.Copy, err = streamcopy.Open(f.dev, streamcopy.Options{}); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, o.Copy.Close(context.WithoutCancel(ctx)))
			}
		}()
	}
	if p == stream.PathNone {
		measured, err := streamfile.Measure(ctx, f.dir, streamfile.MeasureOptions{Stream: o})
		if err != nil {
			return nil, err
		}
		o.Profile = &measured
	}
	s, err := streamfile.Open(o)
	if err != nil || o.Copy == nil {
		return s, err
	}
	return &withCopies{s, o.Copy}, nil
}

// withCopies is a file stream and the copy stream that it uses.
type withCopies struct {
	stream.Stream
	copies stream.Stream
}

func (s *withCopies) Close(ctx context.Context) error {
	if err := s.Stream.Close(ctx); err != nil {
		return err // it may still use the copy stream
	}
	return s.copies.Close(ctx)
}

// open opens a file for the streams.
func (f *fileStreams) open(name string, bytes int64) (*mem.Region, func(context.Context) error, error) {
	dir, err := dirfs.OS().OpenDir(filepath.Dir(name))
	if err != nil {
		return nil, nil, err
	}
	base, err := dir.Open(filepath.Base(name), os.O_RDWR)
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	h, err := streamfile.New(base, name)
	if err != nil {
		return nil, nil, errors.Join(err, base.Close(), dir.Close())
	}
	r, err := h.Region(bytes)
	if err != nil {
		return nil, nil, errors.Join(err, h.Close(context.Background()), dir.Close())
	}
	return r, func(ctx context.Context) error {
		if mode, known := h.CuFileMode(); known {
			f.mode = &file.CuFileMode{GDS: mode.Direct, Reason: mode.Reason}
		}
		return errors.Join(h.Close(ctx), dir.Close())
	}, nil
}

// close closes the device's access to files. All streams must be closed.
func (f *fileStreams) close() error {
	if f.storage == nil {
		return nil
	}
	return f.storage.Close()
}
