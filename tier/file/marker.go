package file

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/zeebo/blake3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

const (
	markerName    = "kvlane.json"
	markerTemp    = "kvlane.json.tmp"
	lockName      = "kvlane.lock"
	tmpName       = "tmp"
	quarantine    = "quarantine"
	markerFormat  = "kvlane block directory"
	markerVersion = 1
	groupsVersion = 2       // of a directory with several page groups, which earlier builds do not read
	maxMarker     = 4 << 20 // bytes; 4096 shards need about 50,000, and there may be block.MaxGroups times as many
)

// Marker is what a directory says about itself in kvlane.json.
type Marker struct {
	Version   int    // of the directory's structure and of its blocks' format
	Directory string // the directory's own random id, 32 hexadecimal digits: its place in rendezvous hashing
	Groups    []Group
}

// Group is what a marker says of a page group's blocks; a model without groups has one.
type Group struct {
	Digest block.Digest
	// Identity is for people and for error messages; only the digest decides. Its salt is a fingerprint of the real
	// one. Nil where the directory was made without it.
	Identity *block.Identity
	Layout   *block.Layout
}

type markerJSON struct {
	Format     string       `json:"format"`
	Version    int          `json:"version"`
	Directory  string       `json:"directory"`
	*groupJSON              // of the only group
	Groups     []*groupJSON `json:"groups,omitempty"` // where there are several
}

type groupJSON struct {
	Digest     string          `json:"identity_digest"`
	Identity   *block.Identity `json:"identity,omitempty"`
	ShardBytes []int64         `json:"shard_bytes"`
}

// newMarker returns the marker of a new directory. ids may be empty.
func newMarker(formats block.Formats, ids []block.Identity) Marker {
	var uuid [16]byte
	rand.Read(uuid[:])
	m := Marker{Version: markerVersion, Directory: hex.EncodeToString(uuid[:])}
	if len(formats) > 1 {
		m.Version = groupsVersion
	}
	for i, f := range formats {
		g := Group{Digest: f.Identity, Layout: f.Layout}
		if len(ids) > 0 {
			id := publicIdentity(ids[i])
			g.Identity = &id
		}
		m.Groups = append(m.Groups, g)
	}
	return m
}

// Formats returns the formats of the directory's blocks.
func (m *Marker) Formats() block.Formats {
	var out block.Formats
	for _, g := range m.Groups {
		out = append(out, block.Format{Layout: g.Layout, Identity: g.Digest})
	}
	return out
}

// publicIdentity replaces the salt, which may be a tenant's secret, by a fingerprint that still tells two apart.
func publicIdentity(id block.Identity) block.Identity {
	if id.Salt != "" {
		var sum [8]byte
		blake3.DeriveKey("github.com/kvlane/kvlane 2026-11 salt fingerprint v1", []byte(id.Salt), sum[:])
		id.Salt = "fingerprint " + hex.EncodeToString(sum[:])
	}
	return id
}

func (m *Marker) encode() ([]byte, error) {
	j := markerJSON{Format: markerFormat, Version: m.Version, Directory: m.Directory}
	for _, g := range m.Groups {
		j.Groups = append(j.Groups, &groupJSON{Digest: g.Digest.String(), Identity: g.Identity, ShardBytes: g.Layout.ShardSizes()})
	}
	if m.Version == markerVersion {
		j.groupJSON, j.Groups = j.Groups[0], nil
	}
	b, err := json.MarshalIndent(j, "", "  ")
	return append(b, '\n'), err
}

// parseMarker reads kvlane.json. Errors: ErrCorrupt where it is unreadable, ErrMismatch for another version.
func parseMarker(b []byte) (Marker, error) {
	var j markerJSON
	// The version comes first: another one may have another structure, which is no damage.
	if err := json.Unmarshal(b, &struct {
		Format  *string `json:"format"`
		Version *int    `json:"version"`
	}{&j.Format, &j.Version}); err != nil {
		return Marker{}, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	if j.Format != markerFormat {
		return Marker{}, fmt.Errorf("format: expected %q, found %q: %w", markerFormat, j.Format, errdefs.ErrCorrupt)
	}
	if j.Version != markerVersion && j.Version != groupsVersion {
		return Marker{}, fmt.Errorf("version: expected %d or %d, found %d: %w", markerVersion, groupsVersion, j.Version, errdefs.ErrMismatch)
	}
	j.groupJSON = &groupJSON{}
	if err := json.Unmarshal(b, &j); err != nil {
		return Marker{}, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	m := Marker{Version: j.Version, Directory: j.Directory}
	if id, err := hex.DecodeString(j.Directory); err != nil || len(id) != 16 {
		return Marker{}, fmt.Errorf("directory: %q are not 32 hexadecimal digits: %w", j.Directory, errdefs.ErrCorrupt)
	}
	if j.Version == markerVersion {
		j.Groups = []*groupJSON{j.groupJSON}
	} else if len(j.Groups) < 2 {
		return Marker{}, fmt.Errorf("groups: %d are not several: %w", len(j.Groups), errdefs.ErrCorrupt)
	}
	for _, gj := range j.Groups {
		g, err := gj.group()
		if err != nil {
			return Marker{}, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
		}
		m.Groups = append(m.Groups, g)
	}
	if err := m.Formats().Validate(); err != nil {
		return Marker{}, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	return m, nil
}

func (j *groupJSON) group() (g Group, err error) {
	if j == nil {
		return g, errors.New("a group is null")
	}
	g.Identity = j.Identity
	if g.Digest, err = block.ParseDigest(j.Digest); err != nil {
		return g, fmt.Errorf("identity_digest: %w", err)
	}
	if g.Layout, err = block.NewLayout(j.ShardBytes); err != nil {
		return g, fmt.Errorf("shard_bytes: %w", err)
	}
	return g, nil
}

// readMarker reads the marker of a directory; an error that is gone() means that it has none.
func readMarker(d dirfs.Dir) (_ Marker, err error) {
	f, err := d.Open(markerName, os.O_RDONLY)
	if errors.Is(err, dirfs.ErrIrregular) {
		return Marker{}, fmt.Errorf("read marker: %w: %w", errdefs.ErrCorrupt, err)
	}
	if err != nil {
		return Marker{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxMarker))
	if err != nil {
		return Marker{}, fmt.Errorf("read marker: %w", err)
	}
	m, err := parseMarker(b)
	if err != nil {
		return Marker{}, fmt.Errorf("read marker %s: %w", markerName, err)
	}
	return m, nil
}

// checkEmpty says why d, which has no marker, cannot be made a directory of blocks.
func checkEmpty(d dirfs.Dir) error {
	names, err := d.ReadDir(".")
	if err != nil {
		return err
	}
	for _, n := range names {
		// lost+found is what a freshly made file system has; the others may be left by a process that died here.
		if n != lockName && !strings.HasPrefix(n, markerTemp) && n != "lost+found" {
			return fmt.Errorf("it is not empty and has no %s: found %q; give an empty directory, or one that kvlane made: %w",
				markerName, n, errdefs.ErrInvalid)
		}
	}
	return nil
}

// writeMarker makes d, which is locked, a directory of blocks. It must be empty.
func writeMarker(d dirfs.Dir, m Marker) error {
	if err := checkEmpty(d); err != nil {
		return err
	}
	return putMarker(d, m)
}

// putMarker gives d, which is locked, the marker, durably.
func putMarker(d dirfs.Dir, m Marker) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	// A name that nobody else has: where locks do not reach other hosts one of them may be at this too.
	temp := markerTemp + "." + newSessionID()
	if _, err := writeFile(d, temp, b, true); err != nil {
		return err
	}
	if err := d.Rename(temp, markerName, false); err != nil {
		return errors.Join(err, remove(d, temp))
	}
	return syncRoot(d)
}

// writeFile writes a new file, or leaves none. It describes the file as it was written.
func writeFile(d dirfs.Dir, name string, b []byte, sync bool) (info dirfs.Info, err error) {
	f, err := d.Open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return dirfs.Info{}, err
	}
	n, err := f.WriteAt(b, 0)
	if err == nil && n != len(b) {
		err = fmt.Errorf("write %s: %d of %d bytes: %w", name, n, len(b), io.ErrShortWrite)
	}
	if err == nil && sync {
		err = f.Sync()
	}
	if err == nil {
		info, err = f.Stat()
	}
	// Network file systems report failed writes at close.
	err = errors.Join(err, f.Close())
	if err != nil {
		err = errors.Join(err, d.Remove(name))
	}
	return info, err
}
