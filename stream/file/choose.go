package file

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// The reasons in completions.
const (
	ReasonForced    = "forced"
	ReasonDefault   = "not measured here: a plain default"
	ReasonMeasured  = "measured to be the fastest here"
	ReasonGDS       = "the device reaches the file system"
	ReasonCached    = "in the page cache"
	ReasonRefused   = "buffered: the file system refuses O_DIRECT"
	ReasonUnopened  = "buffered: a file could not be opened with O_DIRECT" // see GivenUp
	ReasonEmpty     = "no bytes to copy"
	ReasonUnstarted = "ended before it started"
)

// choice selects the queues of a batch. files is the queue between files and host memory. device is
// the queue between files and device memory, if no chunks are needed.
type choice struct {
	path    stream.Path // path of most of the batch's bytes
	files   queue
	device  queue // nil if device memory is copied through chunks
	depth   int   // limit of the batch's unfinished transfers; zero means none
	reason  string
	givenUp error
}

func (c *choice) flush() {
	c.files.flush()
	if c.device != nil {
		c.device.flush()
	}
}

func (c *choice) queueOf(s *Stream, t *transfer) queue {
	switch {
	case c.device != nil && t.part.device:
		return c.device
	case t.file.fd < 0:
		return s.workers
	}
	return c.files
}

// refusal records why a path is not used on a file system.
type refusal struct {
	err      error
	reported bool
}

type wayTo struct {
	path stream.Path
	dev  uint64 // file system
}

// giveUp stops the use of path p on f's file system, unless p is posix or required.
func (s *Stream) giveUp(p stream.Path, f *File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	way := wayTo{p, f.info.Device}
	if p == stream.PathPosix || p == s.opts.Path || p == stream.PathCuFile && s.opts.Direct == DirectRequire || s.absent[way] != nil {
		return
	}
	s.absent[way] = &refusal{err: err}
	s.stats.givenUp.Add(1)
}

// choose selects the path and queues of b.
func (s *Stream) choose(b *batch) (choice, error) {
	first := &b.cut.pieces[0]
	r := Request{Dev: first.file.info.Device, Write: first.write, Bytes: min(b.bytes/int64(len(b.cut.pieces)), s.opts.ChunkBytes)}
	for i := range b.cut.pieces {
		r.Device = r.Device || b.cut.pieces[i].device()
	}
	able := r.Device && s.queues[stream.PathCuFile] != nil && (s.opts.Path == stream.PathNone || s.needsCuFile())
	for _, f := range b.files {
		able = able && (f.direct >= 0 || s.needsCuFile())
	}
	var err error
	if able {
		if r.GDS, err = s.gds(b); err != nil {
			return choice{}, err
		}
	}
	can, givenUp := s.can(r.Dev)
	// Without GDS, cuFile copies through host memory, like chunks, but bypasses the page cache.
	can[stream.PathCuFile] = can[stream.PathCuFile] && r.GDS
	var picked Choice
	switch forced := s.opts.Path; {
	case r.Device && s.opts.Direct == DirectRequire:
		picked = Choice{Path: stream.PathCuFile, Reason: ReasonGDS}
	case forced == stream.PathCuFile && !r.Device:
		picked = Choice{Path: stream.PathPosix, Reason: ReasonForced}
	case forced != stream.PathNone:
		picked = Choice{Path: forced, Reason: ReasonForced}
	default:
		picked = s.opts.Profile.Choose(r, can)
	}
	c := choice{path: picked.Path, files: s.queues[picked.Path], depth: picked.Depth, reason: picked.Reason, givenUp: givenUp}
	if picked.Path == stream.PathCuFile {
		c.files, c.device = s.workers, s.queues[stream.PathCuFile]
		return c, nil
	}
	if r.Device && s.opts.Copy == nil {
		return choice{}, fmt.Errorf("path %s needs a copy stream to reach device memory: %w", picked.Path, errdefs.ErrNotSupported)
	}
	return c, nil
}

// needsCuFile reports whether device memory may only be accessed by cuFile.
func (s *Stream) needsCuFile() bool {
	return s.opts.Direct == DirectRequire || s.opts.Path == stream.PathCuFile
}

// gds registers b's files with cuFile if cuFile may move them, and reports whether the device can
// access all of them directly. Unless cuFile is required, it skips the registration and returns
// false for a file system that cuFile cannot use, or not directly.
func (s *Stream) gds(b *batch) (bool, error) {
	must := s.needsCuFile()
	all := true
	for _, f := range b.files {
		s.mu.Lock()
		mode, known := s.modes[f.info.Device]
		absent := s.absent[wayTo{stream.PathCuFile, f.info.Device}] != nil
		s.mu.Unlock()
		if !must && (absent || known && !mode.Direct) {
			return false, nil
		}
		reg, err := f.storage(s.opts.CuFile.Storage)
		if err != nil {
			s.giveUp(stream.PathCuFile, f, err)
			return false, err
		}
		mode = reg.Mode()
		s.mu.Lock()
		s.modes[f.info.Device] = mode
		s.mu.Unlock()
		if s.opts.Direct == DirectRequire && !mode.Direct {
			return false, fmt.Errorf("file %s: no GPU Direct Storage: %s: %w", f.name, mode.Reason, errdefs.ErrNotSupported)
		}
		all = all && mode.Direct
	}
	return all, nil
}

// can returns the available paths for a file system. givenUp is the reason why a path is no longer
// used, if no completion has reported it yet.
func (s *Stream) can(dev uint64) (can [stream.PathCount]bool, givenUp error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, q := range s.queues {
		r := s.absent[wayTo{stream.Path(p), dev}]
		can[p] = q != nil && r == nil
		if r != nil && !r.reported && givenUp == nil {
			r.reported, givenUp = true, r.err
		}
	}
	return can, givenUp
}
