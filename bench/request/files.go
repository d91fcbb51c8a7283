package request

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/tier/log"
)

// filePart is a range of a file.
type filePart struct {
	name       string
	off, bytes int64
}

// fileLane returns the lane that reads the files of all requests by pread, without a store.
func (g *group) fileLane(p Place) []*lane {
	n := g.requests * g.blocks * len(g.rig.caches)
	l := &lane{rig: g.rig, work: Load, by: Raw, keys: g.rig.loads.keys[:n]}
	if p.Hits == OnDisk {
		l.openFlags = unix.O_DIRECT
	}
	return []*lane{l}
}

// findFiles returns the ranges of files that have the shards of the lane's blocks. For a log it
// returns ranges of the segments with the same number of bytes.
func (l *lane) findFiles() (parts []filePart, err error) {
	r := l.rig
	var segments []filePart
	if r.lower() == log.Name {
		if segments, err = findSegments(r.dir); err != nil {
			return nil, err
		}
	}
	for i, key := range l.keys {
		layout := r.blocks[i%len(r.blocks)].Layout
		part := filePart{off: layout.HeaderBytes(), bytes: layout.DataBytes()}
		if r.lower() != log.Name {
			part.name = blockFile(r.dir, key)
			parts = append(parts, part)
			continue
		}
		for len(segments) > 0 && segments[0].bytes < part.bytes {
			segments = segments[1:]
		}
		if len(segments) == 0 {
			return nil, fmt.Errorf("the segments in %s have fewer bytes than %d blocks: %w", r.dir, len(l.keys), errdefs.ErrNotFound)
		}
		s := &segments[0]
		parts = append(parts, filePart{s.name, s.off, part.bytes})
		s.off, s.bytes = s.off+part.bytes, s.bytes-part.bytes
	}
	return parts, nil
}

// findSegments returns the written parts of a log's segments.
func findSegments(dir string) (parts []filePart, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "seg-*"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		end, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_HOLE)
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("find the end of %s: %w", name, err)
		}
		parts = append(parts, filePart{name: name, bytes: end})
	}
	return parts, nil
}

// readFiles reads the lane's files into pinned memory, by as many goroutines as a store has.
func (l *lane) readFiles(begin time.Time) error {
	if l.parts == nil {
		var err error
		if l.parts, err = l.findFiles(); err != nil {
			return err
		}
		begin = time.Now()
	}
	var g errgroup.Group
	g.SetLimit(store.DefaultReaders)
	to := l.rig.host.Bytes()
	for _, p := range l.parts {
		b := to[:p.bytes]
		to = to[p.bytes:]
		g.Go(func() (err error) {
			f, err := os.OpenFile(p.name, os.O_RDONLY|l.openFlags, 0)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			if _, err = f.ReadAt(b, p.off); errors.Is(err, unix.EINVAL) {
				return fmt.Errorf("the file system has no O_DIRECT: %w: %w", errdefs.ErrNotSupported, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("read files by pread: %w", err)
	}
	l.free = time.Since(begin)
	return nil
}
