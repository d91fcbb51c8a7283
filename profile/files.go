package profile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/kept"
	"github.com/kvlane/kvlane/stream"
	streamfile "github.com/kvlane/kvlane/stream/file"
)

const (
	filesFormat  = "kvlane-file-profile"
	filesVersion = 2
	// maxFilesEncoded is the maximum size of a profile file. A typical profile has 20 KiB.
	maxFilesEncoded = 1 << 20
)

// FileOptions are the options of CalibrateFiles. The zero value has the defaults.
type FileOptions struct {
	// Force measures even if a profile is stored.
	Force bool
	// Dir is the directory of profiles. Empty: kvlane/profiles in the user's cache directory.
	Dir string
	// Measure sets the duration of the measurement, and the device whose memory is measured in
	// addition to host memory.
	Measure streamfile.MeasureOptions
}

// CalibratedFiles is the profile of a file system and its origin.
type CalibratedFiles struct {
	FileSystem FileSystem
	// Profile has the measurements. It refers to the directory by its current device number.
	Profile streamfile.Profile
	Made    time.Time
	// File is the path of the stored profile. Stored reports whether the profile is stored, and
	// Measured whether this call measured it.
	File             string
	Stored, Measured bool
	// Note is the reason for which a stored profile could not be used, or this one could not be
	// stored. Otherwise it is empty.
	Note string
}

// filesDocument is the stored form of a profile.
type filesDocument struct {
	Format     string             `json:"format"`
	Version    int                `json:"version"`
	FileSystem FileSystem         `json:"file_system"`
	Made       time.Time          `json:"made"`
	Points     []streamfile.Point `json:"points"`
}

// CompareDirect returns the stored comparison of cuFile with reads through pinned memory, for reads
// of about bytes from files in dir to dev's memory. It neither loads a library nor measures.
// profileDir is the directory of profiles, as in FileOptions. The error wraps ErrNotFound if
// nothing was measured, and ErrCorrupt or ErrMismatch if the profile cannot be used.
func CompareDirect(dev device.Device, dir, profileDir string, bytes int64) (c streamfile.Comparison, err error) {
	f, err := fileSystemOf(dir)
	if err != nil {
		return c, err
	}
	f.Device = deviceOf(dev, true)
	stored, err := f.load(kept.Dir{Path: profileDir})
	if err != nil {
		return c, err
	}
	return stored.CompareDirect(bytes)
}

// CompareDirect returns the comparison for the profile's file system. The error wraps ErrNotFound
// if cuFile or pinned memory was not measured.
func (c *CalibratedFiles) CompareDirect(bytes int64) (streamfile.Comparison, error) {
	got, measured := c.Profile.CompareDirect(c.FileSystem.dev, bytes)
	if !measured {
		return got, fmt.Errorf("the profile of %s has no figures of cuFile: %w", c.FileSystem, errdefs.ErrNotFound)
	}
	return got, nil
}

// CalibrateFiles returns the profile of dir's file system. If none is stored, it measures one for
// o.Measure.Budget and stores it. Only one process of a host measures at a time. The others wait,
// and get ErrBusy if that takes too long. It also returns the errors of file.Measure.
func CalibrateFiles(ctx context.Context, dir string, o FileOptions) (c *CalibratedFiles, err error) {
	f, err := o.fileSystem(dir)
	if err != nil {
		return nil, err
	}
	store, note := kept.Dir{Path: o.Dir}, ""
	load := func() (*CalibratedFiles, error) { return f.load(store) }
	if o.Force {
		load = func() (*CalibratedFiles, error) { return nil, errdefs.ErrNotFound }
	} else if _, err := load(); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		note = fmt.Sprintf("the stored profile cannot be used: %v", err)
	}
	c, _, err = kept.LoadOrMake(ctx, store, load, func() (*CalibratedFiles, error) {
		p, err := streamfile.Measure(ctx, dir, o.Measure)
		if err != nil {
			return nil, err
		}
		c := &CalibratedFiles{FileSystem: f, Profile: p, Made: time.Now().UTC().Round(0), Measured: true, Note: note}
		c.store(store)
		return c, nil
	})
	return c, err
}

// fileSystem returns the identity for a profile measured in dir.
func (o *FileOptions) fileSystem(dir string) (FileSystem, error) {
	m := &o.Measure.Stream
	f, err := fileSystemOf(dir)
	if err == nil && m.Device != nil {
		f.Device = deviceOf(m.Device, m.CuFile.Storage != nil)
	}
	return f, err
}

// store stores the profile. On failure it sets c.Note.
func (c *CalibratedFiles) store(to kept.Dir) {
	b, err := json.MarshalIndent(filesDocument{filesFormat, filesVersion, c.FileSystem, c.Made, c.Profile.Points}, "", " ")
	if err == nil {
		c.File, err = to.File(c.FileSystem.hash())
	}
	if err == nil {
		err = to.Write(c.FileSystem.hash(), b)
	}
	if c.Stored = err == nil; err != nil {
		c.Note = fmt.Sprintf("the profile of %s cannot be stored: %v", c.FileSystem, err)
	}
}

// load returns the stored profile. The error wraps ErrNotFound if none is stored, ErrCorrupt if the
// file is damaged, and ErrMismatch if it belongs to another file system or version.
func (f FileSystem) load(from kept.Dir) (*CalibratedFiles, error) {
	name, err := from.File(f.hash())
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*CalibratedFiles, error) {
		return nil, fmt.Errorf("load profile %s: %w", name, err)
	}
	b, err := from.Read(f.hash(), maxFilesEncoded)
	if err != nil {
		return fail(err)
	}
	var d filesDocument
	err = json.Unmarshal(b, &d)
	d.FileSystem.dev = f.dev
	switch {
	case d.Format == filesFormat && d.Version != filesVersion: // also if decoding failed
		return fail(fmt.Errorf("version %d is not %d: %w", d.Version, filesVersion, errdefs.ErrMismatch))
	case err != nil:
		return fail(fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err))
	case d.Format != filesFormat:
		return fail(fmt.Errorf("unknown format %q: %w", d.Format, errdefs.ErrCorrupt))
	case d.FileSystem != f:
		return fail(fmt.Errorf("it belongs to %s: %w", d.FileSystem, errdefs.ErrMismatch))
	case len(d.Points) == 0:
		return fail(fmt.Errorf("it has no figures: %w", errdefs.ErrCorrupt))
	}
	for i := range d.Points {
		p := &d.Points[i]
		if _, err := stream.ParsePath(p.Path); err != nil || p.Bytes < 1 || p.Depth < 1 || p.Depth > streamfile.MaxTransfers || p.GBps <= 0 {
			return fail(fmt.Errorf("point %d: %+v: %w", i, *p, errdefs.ErrCorrupt))
		}
		p.Dev = f.dev // it may change when the machine boots
	}
	return &CalibratedFiles{FileSystem: f, Profile: streamfile.Profile{Points: d.Points}, Made: d.Made, File: name, Stored: true}, nil
}
