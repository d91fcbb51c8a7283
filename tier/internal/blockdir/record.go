package blockdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
)

// The names of the usage record of a directory.
const (
	RecordName = "kvlane.usage"
	RecordTemp = "kvlane.usage.tmp" // temporary name, used under the directory's lock
)

const (
	recordVersion = 1
	maxRecord     = 4 << 10 // bytes of the file
	maxHost       = 64      // bytes of a host's name
)

// Record is the usage record of a directory, written by its owner. Processes that share a bound
// with the owner read it instead of counting the blocks.
type Record struct {
	Bytes, Blocks int64
	Peak          int64     // maximum of bytes since the previous record, at least Bytes
	Used          time.Time // last operation of an owner
	Renewed       time.Time // time at which the record was written
	// Host identifies the owner's kernel. On the same kernel, file locks show whether the owner is
	// running.
	Host   string
	Closed bool // the last owner has closed the directory
}

type recordJSON struct {
	Version int       `json:"version"`
	Bytes   int64     `json:"bytes"`
	Blocks  int64     `json:"blocks"`
	Peak    int64     `json:"peak_bytes"`
	Used    time.Time `json:"used"`
	Renewed time.Time `json:"renewed"`
	Host    string    `json:"host"`
	Closed  bool      `json:"closed"`
}

// Encode returns the stored form of the record.
func (r *Record) Encode() ([]byte, error) {
	b, err := json.Marshal(recordJSON{recordVersion, r.Bytes, r.Blocks, r.Peak, r.Used.UTC(), r.Renewed.UTC(), r.Host, r.Closed})
	return append(b, '\n'), err
}

// ParseRecord decodes a record. It returns ErrCorrupt if the record is malformed or impossible, and
// ErrMismatch for another version.
func ParseRecord(b []byte) (Record, error) {
	var j recordJSON
	if len(b) > maxRecord {
		return Record{}, fmt.Errorf("it is longer than %d bytes: %w", maxRecord, errdefs.ErrCorrupt)
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return Record{}, fmt.Errorf("%w: %w", errdefs.ErrCorrupt, err)
	}
	if j.Version != recordVersion {
		return Record{}, fmt.Errorf("version: expected %d, found %d: %w", recordVersion, j.Version, errdefs.ErrMismatch)
	}
	if j.Bytes < 0 || j.Blocks < 0 || len(j.Host) > maxHost || !plausible(j.Used) || !plausible(j.Renewed) {
		return Record{}, fmt.Errorf("a negative number, a name that is too long, or an invalid time: %w", errdefs.ErrCorrupt)
	}
	return Record{j.Bytes, j.Blocks, max(j.Peak, j.Bytes), j.Used, j.Renewed, j.Host, j.Closed}, nil
}

// plausible reports whether t is a possible time of a record. JSON cannot encode much later times.
func plausible(t time.Time) bool {
	year := t.UTC().Year()
	return year >= 1970 && year < 2500
}

// Check returns ErrCorrupt if the record's number of blocks of these formats cannot have the
// record's bytes.
func (r *Record) Check(formats block.Formats) error {
	longest := formats.MaxImageBytes()
	if r.Blocks > math.MaxInt64/longest || r.Bytes > r.Blocks*longest {
		return fmt.Errorf("%d blocks of at most %d bytes cannot have %d bytes: %w", r.Blocks, longest, r.Bytes, errdefs.ErrCorrupt)
	}
	return nil
}

// ReadRecord reads the record of a directory. If there is none, the error satisfies Gone. Other
// errors are those of ParseRecord.
func ReadRecord(d dirfs.Dir) (_ Record, err error) {
	f, err := d.Open(RecordName, os.O_RDONLY)
	if errors.Is(err, dirfs.ErrIrregular) {
		return Record{}, fmt.Errorf("read usage record: %w: %w", errdefs.ErrCorrupt, err)
	}
	if err != nil {
		return Record{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxRecord+1))
	if err != nil {
		return Record{}, fmt.Errorf("read usage record: %w", err)
	}
	r, err := ParseRecord(b)
	if err != nil {
		return Record{}, fmt.Errorf("read usage record %s: %w", RecordName, err)
	}
	return r, nil
}

// WriteRecord replaces the record of a directory. temp must be a name that no other process uses. A
// folder with the record's name is renamed, and removed if it is empty.
func WriteRecord(d dirfs.Dir, temp string, r Record) error {
	b, err := r.Encode()
	if err != nil {
		return err
	}
	if _, err := WriteFile(d, temp, b, false); err != nil {
		return fmt.Errorf("write usage record: %w", err)
	}
	err = d.Rename(temp, RecordName, true)
	if info, serr := d.Stat(RecordName); err != nil && serr == nil && info.Type.IsDir() {
		aside := RecordName + "." + NewID()
		if err = d.Rename(RecordName, aside, false); err == nil {
			_ = d.Remove(aside)
			err = d.Rename(temp, RecordName, true)
		}
	}
	if err != nil {
		return fmt.Errorf("write usage record: %w", errors.Join(err, Remove(d, temp)))
	}
	return nil
}

// ThisHost identifies this kernel until the next boot. It is empty if the identifier cannot be
// read.
var ThisHost = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})
