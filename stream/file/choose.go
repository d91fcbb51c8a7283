package file

import (
	"fmt"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/stream"
)

// The reasons that completions carry.
const (
	ReasonForced    = "forced"
	ReasonDefault   = "not measured here: a plain default"
	ReasonMeasured  = "measured to be the fastest here"
	ReasonGDS       = "the device reaches the file system"
	ReasonCached    = "in the page cache"
	ReasonRefused   = "buffered: the file system refuses O_DIRECT"
	ReasonUnopened  = "buffered: a file could not be opened with O_DIRECT" // GivenUp says why
	ReasonEmpty     = "nothing to copy"
	ReasonUnstarted = "ended before it started"
)

// choice is how a batch travels: between files and host memory by one queue, and by another between files and the device, if
// that does not go through chunks.
type choice struct {
	path    stream.Path // of what most of the batch's bytes go by
	files   queue
	device  queue // nil: through chunks
	depth   int   // transfers of the batch that may be unfinished; zero: no bound of its own
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

// refusal is why a path is not taken on a file system.
type refusal struct {
	err  error
	told bool
}

type wayTo struct {
	path stream.Path
	dev  uint64 // the file system
}

// giveUp has a path not be taken on f's file system any more, unless it must be.
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

// choose says how b travels. After an error it cannot.
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
	can[stream.PathCuFile] = can[stream.PathCuFile] && r.GDS // else it goes through memory of the host as chunks do, past the page cache
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
		return choice{}, fmt.Errorf("path %s needs a stream of copies to reach device memory: %w", picked.Path, errdefs.ErrNotSupported)
	}
	return c, nil
}

// needsCuFile reports whether device memory is to be reached by cuFile and by nothing else.
func (s *Stream) needsCuFile() bool {
	return s.opts.Direct == DirectRequire || s.opts.Path == stream.PathCuFile
}

// gds registers b's files with cuFile where that may be how they travel, and reports whether the device reaches them itself. The
// first file tells for its file system, which way others go that have not got to be registered.
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

// can returns the paths that the stream has for a file system, and what has been given up and not been told.
func (s *Stream) can(dev uint64) (can [stream.PathCount]bool, givenUp error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, q := range s.queues {
		r := s.absent[wayTo{stream.Path(p), dev}]
		can[p] = q != nil && r == nil
		if r != nil && !r.told && givenUp == nil {
			r.told, givenUp = true, r.err
		}
	}
	return can, givenUp
}
