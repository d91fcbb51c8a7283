package blockdir

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
)

// The files of a directory's removal log. The current file replaces the old one when it is full.
const (
	RemovalsName = "kvlane.removed"
	RemovalsOld  = "kvlane.removed.old"
)

// A file of the log consists of records of removalBytes:
//
//	0  magic, version, cause    2 + 1 + 1 bytes
//	4  process id               4 bytes
//	8  time                     8 bytes, nanoseconds since 1970
//	16 key                      32 bytes
//	48 name of the process      12 bytes, padded with zeros
//	60 checksum of 0 to 59      4 bytes, the low half of XXH3
const (
	removalBytes   = 64
	removalMagic   = "\x89R"
	removalVersion = 1
	removalName    = 12
	removalSum     = removalBytes - 4

	leastRemovals   = 64 << 10 // smallest bound of a file
	mostRemovals    = 4 << 20  // largest bound of a file, and that of a directory without a bound
	removalShare    = 256      // part of a directory's bound that a file may have
	pendingRemovals = 64 << 10 // bytes that are written together
)

// Removals writes the removal log of a directory: for each removed block its key, time, cause and
// process. The log is bounded. It is not synced, so that a power failure may lose its end. Several
// processes may write to it. All methods are safe for concurrent use, and a nil Removals does
// nothing.
type Removals struct {
	dir   dirfs.Dir
	limit int64 // bytes of a file
	lost  atomic.Int64

	mu      sync.Mutex
	pending []byte        // guarded by mu
	writing chan struct{} // holds an element during a write
}

// NewRemovals returns the removal log of a directory whose blocks are bounded to maxBytes. Zero
// means no bound.
func NewRemovals(d dirfs.Dir, maxBytes int64) *Removals {
	limit := int64(mostRemovals)
	if maxBytes > 0 {
		limit = min(limit, max(leastRemovals, maxBytes/removalShare))
	}
	return &Removals{dir: d, limit: limit, writing: make(chan struct{}, 1)}
}

// Add records the removal of a block. It writes many records at a time, or at Flush.
func (r *Removals) Add(now time.Time, key block.Key, cause tier.Cause) {
	if r == nil {
		return
	}
	pid, name := thisProcess()
	r.mu.Lock()
	r.pending = appendRemoval(r.pending, key, &tier.Removal{Time: now, Cause: cause, PID: pid, Process: name})
	full := len(r.pending) >= pendingRemovals
	r.mu.Unlock()
	if full {
		r.Flush()
	}
}

// Flush writes the pending records. Records that cannot be written, as on a full disk, are dropped.
func (r *Removals) Flush() {
	if r == nil {
		return
	}
	r.mu.Lock()
	b := r.pending
	r.pending = nil
	r.mu.Unlock()
	if len(b) == 0 {
		return
	}
	r.writing <- struct{}{}
	defer func() { <-r.writing }()
	if r.append(b) != nil {
		r.lost.Add(int64(len(b) / removalBytes))
	}
}

// Lost returns the number of records that could not be written.
func (r *Removals) Lost() int64 { return r.lost.Load() }

// append appends b to the current file, after making it the old one if it is full.
func (r *Removals) append(b []byte) (err error) {
	info, err := r.dir.Stat(RemovalsName)
	if err == nil && info.Bytes+int64(len(b)) > r.limit {
		err = r.dir.Rename(RemovalsName, RemovalsOld, true)
	}
	if err != nil && !Gone(err) {
		return err
	}
	// With O_APPEND the records of several processes follow each other, whatever the offset is.
	f, err := r.dir.Open(RemovalsName, os.O_WRONLY|os.O_CREATE|unix.O_APPEND)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err = f.Stat(); err == nil {
		err = WriteAll(f, RemovalsName, b, info.Bytes)
	}
	return err
}

// thisProcess returns the id and the name of this process.
var thisProcess = sync.OnceValues(func() (pid int, name string) {
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		return os.Getpid(), ""
	}
	name = strings.TrimSpace(string(comm))
	return os.Getpid(), name[:min(len(name), removalName)]
})

// appendRemoval appends a record to b.
func appendRemoval(b []byte, key block.Key, r *tier.Removal) []byte {
	at := len(b)
	b = append(b, removalMagic...)
	b = append(b, removalVersion, byte(r.Cause))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.PID))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Time.UnixNano()))
	b = append(b, key[:]...)
	var name [removalName]byte
	copy(name[:], r.Process)
	b = append(b, name[:]...)
	return binary.LittleEndian.AppendUint32(b, uint32(xxh3.Hash(b[at:])))
}

// decodeRemoval decodes the record at the start of b. ok is false if no intact record begins there.
func decodeRemoval(b []byte) (key block.Key, r tier.Removal, ok bool) {
	if len(b) < removalBytes || string(b[:2]) != removalMagic || b[2] != removalVersion ||
		binary.LittleEndian.Uint32(b[removalSum:]) != uint32(xxh3.Hash(b[:removalSum])) {
		return key, r, false
	}
	r = tier.Removal{
		Cause: tier.Cause(b[3]), PID: int(binary.LittleEndian.Uint32(b[4:])), Time: time.Unix(0, int64(binary.LittleEndian.Uint64(b[8:]))),
		Process: strings.TrimRight(string(b[48:removalSum]), "\x00"),
	}
	return block.Key(b[16:48]), r, true
}

// RemovalLog is the result of reading a removal log.
type RemovalLog struct {
	Last    map[block.Key]tier.Removal // the last removal of each wanted block
	Oldest  time.Time                  // time of the oldest record; zero without records
	Records int64
	Damaged int64 // damaged places, which were skipped
}

// ReadRemovals reads the removals of the wanted keys from a directory's log. A missing log has no
// records.
func ReadRemovals(d dirfs.Dir, wanted []block.Key) (l RemovalLog, err error) {
	l.Last = make(map[block.Key]tier.Removal)
	want := make(map[block.Key]bool, len(wanted))
	for _, key := range wanted {
		want[key] = true
	}
	var errs []error
	for _, name := range []string{RemovalsOld, RemovalsName} {
		f, err := d.Open(name, os.O_RDONLY)
		if errors.Is(err, dirfs.ErrIrregular) {
			l.Damaged++
			continue
		}
		if Gone(err) {
			continue
		}
		if err == nil {
			err = errors.Join(l.read(io.NewSectionReader(f, 0, mostRemovals+pendingRemovals), want), f.Close())
		}
		errs = append(errs, err)
	}
	return l, errors.Join(errs...)
}

// add adds a record.
func (l *RemovalLog) add(key block.Key, r tier.Removal, want map[block.Key]bool) {
	l.Records++
	if l.Oldest.IsZero() || r.Time.Before(l.Oldest) {
		l.Oldest = r.Time
	}
	if last, ok := l.Last[key]; want[key] && (!ok || !r.Time.Before(last.Time)) {
		l.Last[key] = r
	}
}

// read reads the records of a file. After a damaged place it searches for the next record.
func (l *RemovalLog) read(from io.Reader, want map[block.Key]bool) error {
	buf := make([]byte, 0, pendingRemovals)
	intact := true
	for {
		n, err := io.ReadFull(from, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		at := 0
		for len(buf)-at >= removalBytes {
			key, r, ok := decodeRemoval(buf[at:])
			if ok {
				l.add(key, r, want)
				at += removalBytes
			} else {
				at++
			}
			if !ok && intact {
				l.Damaged++
			}
			intact = ok
		}
		buf = buf[:copy(buf, buf[at:])]
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if len(buf) > 0 && intact {
				l.Damaged++
			}
			return nil
		case err != nil:
			return err
		}
	}
}

// Answers explains blocks of a directory.
type Answers struct {
	Marker Marker
	Keys   []block.Key
	Blocks []tier.Explanation // of Keys
	// Records counts the recorded removals, and Damaged the damaged places between them.
	Records, Damaged int64
}

// ExplainRemovals sets Removed of the explanations of absent blocks, and Recorded of all. at are the
// indices of the blocks in keys and out.
func ExplainRemovals(d dirfs.Dir, keys []block.Key, at []int, out []tier.Explanation) (RemovalLog, error) {
	var absent []block.Key
	for _, i := range at {
		if out[i].State != tier.Ready {
			absent = append(absent, keys[i])
		}
	}
	l, err := ReadRemovals(d, absent)
	for _, i := range at {
		out[i].Recorded = l.Oldest
		if r, ok := l.Last[keys[i]]; ok {
			out[i].Removed = &r
		}
	}
	return l, err
}
