package blockdir

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/blake3"
	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// The names in every directory of blocks.
const (
	MarkerName = "kvlane.json"
	MarkerTemp = "kvlane.json.tmp" // a marker that is being written
	LockName   = "kvlane.lock"
	Quarantine = "quarantine"
)

const (
	markerVersion = 1
	groupsVersion = 2 // several page groups; earlier builds refuse it
	// MaxMarker is the largest size of a marker. 4,096 shards take 50,000 bytes per group.
	MaxMarker = 4 << 20
)

// Kind is the way in which a directory stores blocks. It is part of the marker.
type Kind string

// The kinds of directories.
const (
	Files Kind = "kvlane block directory" // one file per block
	Log   Kind = "kvlane log directory"   // segments of a log
	// Objects is the kind of a folder in an object store, with one object per block.
	Objects Kind = "kvlane block objects"
)

// Marker is the content of kvlane.json. It describes the directory.
type Marker struct {
	Kind      Kind
	Version   int    // version of the directory's structure and of the format of its blocks
	Directory string // random id for rendezvous hashing, 32 hexadecimal digits
	Groups    []Group
}

// Group describes the blocks of a page group. A model without groups has one Group.
type Group struct {
	Digest block.Digest
	// Identity is for users and error messages; only Digest is compared. The salt is replaced by a
	// fingerprint. It is nil if the directory was created without an identity.
	Identity *block.Identity
	Layout   *block.Layout
}

type markerJSON struct {
	Format     Kind         `json:"format"`
	Version    int          `json:"version"`
	Directory  string       `json:"directory"`
	*groupJSON              // the single group
	Groups     []*groupJSON `json:"groups,omitempty"` // if there are several groups
	// checksum of the file with noSum in place of Sum; may be missing
	Sum string `json:"sum,omitempty"`
}

type groupJSON struct {
	Digest     string          `json:"identity_digest"`
	Identity   *block.Identity `json:"identity,omitempty"`
	ShardBytes []int64         `json:"shard_bytes"`
}

// noSum replaces the checksum, which is XXH3 as 16 hexadecimal digits, while it is computed.
const noSum = "0000000000000000"

func sumOf(marker []byte) string { return fmt.Sprintf("%016x", xxh3.Hash(marker)) }

// withSum replaces the checksum old in a marker with sum. It replaces the last match, because the
// same digits may occur before the checksum.
func withSum(marker []byte, old, sum string) []byte {
	at := bytes.LastIndex(marker, []byte(old))
	if at < 0 {
		return nil
	}
	return slices.Concat(marker[:at], []byte(sum), marker[at+len(old):])
}

// NewMarker returns the marker of a new directory. ids may be empty.
func NewMarker(sort Kind, formats block.Formats, ids []block.Identity) Marker {
	var uuid [16]byte
	rand.Read(uuid[:])
	m := Marker{Kind: sort, Version: markerVersion, Directory: hex.EncodeToString(uuid[:])}
	if len(formats) > 1 {
		m.Version = groupsVersion
	}
	for i, f := range formats {
		g := Group{Digest: f.Identity, Layout: f.Layout}
		if len(ids) > 0 {
			id := PublicIdentity(ids[i])
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

// PublicIdentity replaces the salt, which may be a secret, with a fingerprint. Different salts have
// different fingerprints.
func PublicIdentity(id block.Identity) block.Identity {
	if id.Salt != "" {
		var sum [8]byte
		blake3.DeriveKey("github.com/kvlane/kvlane 2026-11 salt fingerprint v1", []byte(id.Salt), sum[:])
		id.Salt = "fingerprint " + hex.EncodeToString(sum[:])
	}
	return id
}

// Encode returns the content of kvlane.json.
func (m *Marker) Encode() ([]byte, error) {
	j := markerJSON{Format: m.Kind, Version: m.Version, Directory: m.Directory, Sum: noSum}
	for _, g := range m.Groups {
		j.Groups = append(j.Groups, &groupJSON{Digest: g.Digest.String(), Identity: g.Identity, ShardBytes: g.Layout.ShardSizes()})
	}
	if m.Version == markerVersion {
		j.groupJSON, j.Groups = j.Groups[0], nil
	}
	b, err := json.MarshalIndent(j, "", "  ")
	b = append(b, '\n')
	return withSum(b, noSum, sumOf(b)), err
}

// ParseMarker parses kvlane.json. It returns ErrCorrupt for a malformed marker and ErrMismatch for
// another version.
func ParseMarker(b []byte) (Marker, error) {
	var j markerJSON
	// Check these first: another version may have another structure, and is not damaged.
	if err := json.Unmarshal(b, &struct {
		Format  *Kind   `json:"format"`
		Version *int    `json:"version"`
		Sum     *string `json:"sum"`
	}{&j.Format, &j.Version, &j.Sum}); err != nil {
		return Marker{}, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	if j.Sum != "" && sumOf(withSum(b, j.Sum, noSum)) != j.Sum {
		return Marker{}, fmt.Errorf("its checksum is wrong: %w", errdefs.ErrCorrupt)
	}
	if kinds := []Kind{Files, Log, Objects}; !slices.Contains(kinds, j.Format) {
		return Marker{}, fmt.Errorf("format: expected one of %q, found %q: %w", kinds, j.Format, errdefs.ErrCorrupt)
	}
	if j.Version != markerVersion && j.Version != groupsVersion {
		return Marker{}, fmt.Errorf("version: expected %d or %d, found %d: %w", markerVersion, groupsVersion, j.Version, errdefs.ErrMismatch)
	}
	j.groupJSON = &groupJSON{}
	if err := json.Unmarshal(b, &j); err != nil {
		return Marker{}, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	m := Marker{Kind: j.Format, Version: j.Version, Directory: j.Directory}
	if id, err := hex.DecodeString(j.Directory); err != nil || len(id) != 16 {
		return Marker{}, fmt.Errorf("directory: %q: must be 32 hexadecimal digits: %w", j.Directory, errdefs.ErrCorrupt)
	}
	if j.Version == markerVersion {
		j.Groups = []*groupJSON{j.groupJSON}
	} else if len(j.Groups) < 2 {
		return Marker{}, fmt.Errorf("groups: %d: must be at least 2: %w", len(j.Groups), errdefs.ErrCorrupt)
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

// ErrOtherKind is returned for a directory that stores blocks in another way. It wraps ErrMismatch.
var ErrOtherKind = fmt.Errorf("it stores blocks in another format: %w", errdefs.ErrMismatch)

// ReadMarker reads the marker of a directory of the given kind, or of any kind if sort is empty. If
// there is no marker, the error satisfies Gone. It returns ErrCorrupt for a malformed marker,
// ErrMismatch for another version, and ErrOtherKind.
func ReadMarker(d dirfs.Dir, sort Kind) (_ Marker, err error) {
	f, err := d.Open(MarkerName, os.O_RDONLY)
	if errors.Is(err, dirfs.ErrIrregular) {
		return Marker{}, fmt.Errorf("read marker: %w: %w", errdefs.ErrCorrupt, err)
	}
	if err != nil {
		return Marker{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, MaxMarker))
	if err != nil {
		return Marker{}, fmt.Errorf("read marker: %w", err)
	}
	m, err := ParseMarker(b)
	if err != nil {
		return Marker{}, fmt.Errorf("read marker %s: %w", MarkerName, err)
	}
	if sort != "" && m.Kind != sort {
		return Marker{}, fmt.Errorf("read marker %s: it is a %s, not a %s: %w", MarkerName, m.Kind, sort, ErrOtherKind)
	}
	return m, nil
}

// CheckEmpty returns an error if d is not empty, except for files that may precede the marker.
func CheckEmpty(d dirfs.Dir) error {
	names, err := d.ReadDir(".")
	if err != nil {
		return err
	}
	for _, n := range names {
		// A new file system has lost+found. The other files may be left by a process that ended
		// here.
		if n != LockName && !strings.HasPrefix(n, MarkerTemp) && n != "lost+found" {
			return fmt.Errorf("it is not empty and has no %s: found %q; give an empty directory or one created by kvlane; "+
				"if %s was lost: \"kvlane store verify --repair\": %w", MarkerName, n, MarkerName, errdefs.ErrInvalid)
		}
	}
	return nil
}

// WriteMarker turns an empty directory into a directory of blocks. The caller holds the lock of d.
func WriteMarker(d dirfs.Dir, m Marker) error {
	if err := CheckEmpty(d); err != nil {
		return err
	}
	return PutMarker(d, m)
}

// RepairMarker writes a new marker and moves the old one to quarantine. The caller holds the lock
// of d.
func RepairMarker(d dirfs.Dir, now time.Time, m Marker) error {
	if err := Mkdir(d, Quarantine); err != nil {
		return err
	}
	old := fmt.Sprintf("%s/%016x-%s", Quarantine, uint64(now.UnixNano()), MarkerName)
	if err := d.Rename(MarkerName, old, false); err != nil && !Gone(err) {
		return err
	}
	return PutMarker(d, m)
}

// PutMarker writes the marker and makes it durable. The caller holds the lock of d.
func PutMarker(d dirfs.Dir, m Marker) error {
	b, err := m.Encode()
	if err != nil {
		return err
	}
	// Locks may not work between hosts, so another host may write a marker at the same time.
	temp := MarkerTemp + "." + NewID()
	if _, err := WriteFile(d, temp, b, true); err != nil {
		return err
	}
	if err := d.Rename(temp, MarkerName, false); err != nil {
		return errors.Join(err, Remove(d, temp))
	}
	return SyncRoot(d)
}
