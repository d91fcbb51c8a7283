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

// The names in a directory of blocks that every tier gives.
const (
	MarkerName = "kvlane.json"
	MarkerTemp = "kvlane.json.tmp" // a marker that is being written
	LockName   = "kvlane.lock"
	Quarantine = "quarantine"
)

const (
	markerVersion = 1
	groupsVersion = 2       // of a directory with several page groups, which earlier builds do not read
	maxMarker     = 4 << 20 // bytes; 4096 shards need about 50,000, and there may be block.MaxGroups times as many
)

// Sort is how a directory's blocks are kept, as the marker says it.
type Sort string

// The sorts.
const (
	Files Sort = "kvlane block directory" // a file each
	Log   Sort = "kvlane log directory"   // in the segments of a log
)

// Marker is what a directory says about itself in kvlane.json.
type Marker struct {
	Sort      Sort
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
	Format     Sort         `json:"format"`
	Version    int          `json:"version"`
	Directory  string       `json:"directory"`
	*groupJSON              // of the only group
	Groups     []*groupJSON `json:"groups,omitempty"` // where there are several
	Sum        string       `json:"sum,omitempty"`    // checksum of the file with noSum in its place; earlier builds wrote none
}

type groupJSON struct {
	Digest     string          `json:"identity_digest"`
	Identity   *block.Identity `json:"identity,omitempty"`
	ShardBytes []int64         `json:"shard_bytes"`
}

// noSum stands in a marker for its checksum while that is computed: XXH3, as 16 hexadecimal digits.
const noSum = "0000000000000000"

func sumOf(marker []byte) string { return fmt.Sprintf("%016x", xxh3.Hash(marker)) }

// withSum returns the marker with another checksum. The checksum comes last, so that the same digits before it are something else.
func withSum(marker []byte, old, sum string) []byte {
	at := bytes.LastIndex(marker, []byte(old))
	if at < 0 {
		return nil
	}
	return slices.Concat(marker[:at], []byte(sum), marker[at+len(old):])
}

// NewMarker returns the marker of a new directory. ids may be empty.
func NewMarker(sort Sort, formats block.Formats, ids []block.Identity) Marker {
	var uuid [16]byte
	rand.Read(uuid[:])
	m := Marker{Sort: sort, Version: markerVersion, Directory: hex.EncodeToString(uuid[:])}
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
	j := markerJSON{Format: m.Sort, Version: m.Version, Directory: m.Directory, Sum: noSum}
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

// parseMarker reads kvlane.json. Errors: ErrCorrupt where it is unreadable, ErrMismatch for another version.
func parseMarker(b []byte) (Marker, error) {
	var j markerJSON
	// These come first: another version may have another structure, which is no damage.
	if err := json.Unmarshal(b, &struct {
		Format  *Sort   `json:"format"`
		Version *int    `json:"version"`
		Sum     *string `json:"sum"`
	}{&j.Format, &j.Version, &j.Sum}); err != nil {
		return Marker{}, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	if j.Sum != "" && sumOf(withSum(b, j.Sum, noSum)) != j.Sum {
		return Marker{}, fmt.Errorf("its checksum is not that of its bytes: %w", errdefs.ErrCorrupt)
	}
	if j.Format != Files && j.Format != Log {
		return Marker{}, fmt.Errorf("format: expected %q or %q, found %q: %w", Files, Log, j.Format, errdefs.ErrCorrupt)
	}
	if j.Version != markerVersion && j.Version != groupsVersion {
		return Marker{}, fmt.Errorf("version: expected %d or %d, found %d: %w", markerVersion, groupsVersion, j.Version, errdefs.ErrMismatch)
	}
	j.groupJSON = &groupJSON{}
	if err := json.Unmarshal(b, &j); err != nil {
		return Marker{}, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	m := Marker{Sort: j.Format, Version: j.Version, Directory: j.Directory}
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

// ErrOtherSort is the ErrMismatch of a directory whose blocks are kept in another way.
var ErrOtherSort = fmt.Errorf("its blocks are kept in another way: %w", errdefs.ErrMismatch)

// ReadMarker reads the marker of a directory, which is of that sort, or of any where sort is empty; an error that is Gone means
// that it has none. Errors: ErrCorrupt where it is unreadable, ErrMismatch for another version, ErrOtherSort.
func ReadMarker(d dirfs.Dir, sort Sort) (_ Marker, err error) {
	f, err := d.Open(MarkerName, os.O_RDONLY)
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
		return Marker{}, fmt.Errorf("read marker %s: %w", MarkerName, err)
	}
	if sort != "" && m.Sort != sort {
		return Marker{}, fmt.Errorf("read marker %s: it is a %s, not a %s: %w", MarkerName, m.Sort, sort, ErrOtherSort)
	}
	return m, nil
}

// CheckEmpty says why d, which has no marker, cannot be made a directory of blocks.
func CheckEmpty(d dirfs.Dir) error {
	names, err := d.ReadDir(".")
	if err != nil {
		return err
	}
	for _, n := range names {
		// lost+found is what a freshly made file system has; the others may be left by a process that died here.
		if n != LockName && !strings.HasPrefix(n, MarkerTemp) && n != "lost+found" {
			return fmt.Errorf("it is not empty and has no %s: found %q; give an empty directory or one that kvlane made; "+
				"if %s was lost: \"kvlane store verify --repair\": %w", MarkerName, n, MarkerName, errdefs.ErrInvalid)
		}
	}
	return nil
}

// WriteMarker makes d, which is locked, a directory of blocks. It must be empty.
func WriteMarker(d dirfs.Dir, m Marker) error {
	if err := CheckEmpty(d); err != nil {
		return err
	}
	return PutMarker(d, m)
}

// MendMarker gives d, which is locked, the marker, and keeps what is left of the old one in quarantine.
func MendMarker(d dirfs.Dir, now time.Time, m Marker) error {
	if err := Mkdir(d, Quarantine); err != nil {
		return err
	}
	old := fmt.Sprintf("%s/%016x-%s", Quarantine, uint64(now.UnixNano()), MarkerName)
	if err := d.Rename(MarkerName, old, false); err != nil && !Gone(err) {
		return err
	}
	return PutMarker(d, m)
}

// PutMarker gives d, which is locked, the marker, durably.
func PutMarker(d dirfs.Dir, m Marker) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	// A name that nobody else has: where locks do not reach other hosts one of them may be at this too.
	temp := MarkerTemp + "." + NewID()
	if _, err := WriteFile(d, temp, b, true); err != nil {
		return err
	}
	if err := d.Rename(temp, MarkerName, false); err != nil {
		return errors.Join(err, Remove(d, temp))
	}
	return SyncRoot(d)
}
