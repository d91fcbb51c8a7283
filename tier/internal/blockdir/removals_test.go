package blockdir

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
)

func numbered(n uint64) (key block.Key) {
	binary.LittleEndian.PutUint64(key[:], n)
	return key
}

func openTemp(tb testing.TB) (dirfs.Dir, string) {
	tb.Helper()
	path := tb.TempDir()
	d, err := dirfs.OS().OpenDir(path)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	})
	return d, path
}

func readAll(tb testing.TB, d dirfs.Dir, keys ...block.Key) RemovalLog {
	tb.Helper()
	l, err := ReadRemovals(d, keys)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// The last removal of a block is found with its cause and process, and those of other blocks are
// not returned.
func TestRemovalsAreFound(t *testing.T) {
	d, _ := openTemp(t)
	if l := readAll(t, d, numbered(1)); l.Records != 0 || !l.Oldest.IsZero() || len(l.Last) != 0 {
		t.Errorf("an empty log: %+v", l)
	}
	r := NewRemovals(d, 0)
	start := time.Unix(1000, 5)
	r.Add(start, numbered(1), tier.CauseBound)
	r.Add(start.Add(time.Second), numbered(2), tier.CauseGC)
	r.Flush()
	r.Add(start.Add(2*time.Second), numbered(1), tier.CauseDamage)
	if l := readAll(t, d, numbered(1)); l.Records != 2 {
		t.Errorf("%d records before the flush", l.Records)
	}
	r.Flush()
	r.Flush()
	l := readAll(t, d, numbered(1), numbered(3))
	got, ok := l.Last[numbered(1)]
	if !ok || len(l.Last) != 1 || l.Records != 3 || l.Damaged != 0 || !l.Oldest.Equal(start) {
		t.Fatalf("%+v", l)
	}
	if got.Cause != tier.CauseDamage || !got.Time.Equal(start.Add(2*time.Second)) || got.PID != os.Getpid() || got.Process == "" {
		t.Errorf("%+v", got)
	}
	var none *Removals
	none.Add(start, numbered(1), tier.CauseBound)
	none.Flush()
}

// The log has at most two files of its bound, and the latest records are in them.
func TestRemovalsAreBounded(t *testing.T) {
	d, path := openTemp(t)
	const bound = 20 << 20 // of blocks
	r := NewRemovals(d, bound)
	most, total := int64(0), uint64(20*bound/removalShare/removalBytes)
	for n := range total {
		r.Add(time.Unix(int64(n), 0), numbered(n), tier.CauseBound)
		bytes := int64(0)
		for _, name := range []string{RemovalsName, RemovalsOld} {
			if info, err := os.Stat(filepath.Join(path, name)); err == nil {
				bytes += info.Size()
			}
		}
		if most = max(most, bytes); len(r.pending) > pendingRemovals {
			t.Fatalf("%d bytes are pending", len(r.pending))
		}
	}
	r.Flush()
	if limit := int64(2 * bound / removalShare); most > limit || most < limit/2 {
		t.Errorf("at most %d bytes, expected %d to %d", most, limit/2, limit)
	}
	newest, oldest := numbered(total-1), numbered(0)
	l := readAll(t, d, newest, oldest)
	if _, ok := l.Last[newest]; !ok || len(l.Last) != 1 {
		t.Errorf("the newest: %t of %d", ok, len(l.Last))
	}
	if l.Oldest.Unix() < int64(total)/2 || l.Records < bound/removalShare/removalBytes {
		t.Errorf("%d records from %v on", l.Records, l.Oldest)
	}
	if r.Lost() != 0 {
		t.Errorf("%d lost", r.Lost())
	}
}

// Several logs of one directory, as of several processes, lose no record of each other.
func TestRemovalsOfSeveralProcesses(t *testing.T) {
	d, _ := openTemp(t)
	const writers, each = 4, 500
	var wg sync.WaitGroup
	var keys []block.Key
	for w := range writers {
		for n := range each {
			keys = append(keys, numbered(uint64(w*each+n)))
		}
		r := NewRemovals(d, 0)
		wg.Go(func() {
			for n := range each {
				r.Add(time.Unix(int64(n), 0), numbered(uint64(w*each+n)), tier.CauseBound)
				if n%7 == 0 {
					r.Flush()
				}
			}
			r.Flush()
		})
	}
	wg.Wait()
	if l := readAll(t, d, keys...); len(l.Last) != writers*each || l.Damaged != 0 {
		t.Errorf("%d of %d blocks, %d damaged", len(l.Last), writers*each, l.Damaged)
	}
}

// A damaged record is skipped and counted, wherever it is, and so are bytes between records.
func TestDamagedRemovalsAreSkipped(t *testing.T) {
	const records = 2000 // more than a buffer
	var good []byte
	var keys []block.Key
	for n := range uint64(records) {
		keys = append(keys, numbered(n))
		good = appendRemoval(good, keys[n], &tier.Removal{Time: time.Unix(int64(n), 0), Cause: tier.CauseBound, PID: 7, Process: "twelve-bytes"})
	}
	for name, c := range map[string]struct {
		change  func(b []byte) []byte
		missing int
		damaged int64
	}{
		"intact":        {func(b []byte) []byte { return b }, 0, 0},
		"a flipped bit": {func(b []byte) []byte { b[64*1023+20] ^= 1; return b }, 1, 1},
		"two places":    {func(b []byte) []byte { b[3] ^= 1; b[64*1500] ^= 1; return b }, 2, 2},
		"cut":           {func(b []byte) []byte { return b[:len(b)-10] }, 1, 1},
		"bytes between": {func(b []byte) []byte { return slices.Insert(b, 64*1000, make([]byte, 33)...) }, 0, 1},
		"bytes lost":    {func(b []byte) []byte { return slices.Delete(b, 64*1000+5, 64*1000+9) }, 1, 1},
		"a version":     {func(b []byte) []byte { b[2] = 9; return b }, 1, 1},
	} {
		d, path := openTemp(t)
		if err := os.WriteFile(filepath.Join(path, RemovalsName), c.change(bytes.Clone(good)), 0o600); err != nil {
			t.Fatal(err)
		}
		l := readAll(t, d, keys...)
		if records-len(l.Last) != c.missing || l.Damaged != c.damaged {
			t.Errorf("%s: %d missing, %d damaged; expected %d and %d", name, records-len(l.Last), l.Damaged, c.missing, c.damaged)
		}
		for key, r := range l.Last {
			if r.PID != 7 || r.Process != "twelve-bytes" || r.Cause != tier.CauseBound || numbered(uint64(r.Time.Unix())) != key {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
}

// Records that cannot be written are dropped and counted, and later ones are written.
func TestRemovalsThatCannotBeWritten(t *testing.T) {
	d, path := openTemp(t)
	name := filepath.Join(path, RemovalsName)
	if err := os.Mkdir(name, 0o700); err != nil {
		t.Fatal(err)
	}
	r := NewRemovals(d, 0)
	r.Add(time.Unix(1, 0), numbered(1), tier.CauseBound)
	r.Flush()
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	r.Add(time.Unix(2, 0), numbered(2), tier.CauseBound)
	r.Flush()
	if l := readAll(t, d, numbered(1), numbered(2)); len(l.Last) != 1 || r.Lost() != 1 {
		t.Errorf("%+v, %d lost", l, r.Lost())
	}
}

func FuzzRemovals(f *testing.F) {
	key := numbered(3)
	one := appendRemoval(nil, key, &tier.Removal{Time: time.Unix(9, 9), Cause: tier.CauseAge, PID: 1, Process: "x"})
	f.Add([]byte(nil))
	f.Add(one)
	f.Add(append(append([]byte("garbage"), one...), one[:40]...))
	f.Add(bytes.Repeat([]byte(removalMagic), 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		l := RemovalLog{Last: make(map[block.Key]tier.Removal)}
		if err := l.read(bytes.NewReader(b), map[block.Key]bool{key: true}); err != nil {
			t.Fatal(err)
		}
		if most := int64(len(b) / removalBytes); l.Records > most || l.Damaged > l.Records+1 {
			t.Errorf("%d records and %d damaged places in %d bytes", l.Records, l.Damaged, len(b))
		}
		for _, r := range l.Last {
			if s := r.String(); s == "" {
				t.Error("no text")
			}
		}
		// An intact record is found after any bytes.
		after := RemovalLog{Last: make(map[block.Key]tier.Removal)}
		if err := after.read(bytes.NewReader(append(bytes.Clone(b), one...)), map[block.Key]bool{key: true}); err != nil {
			t.Fatal(err)
		}
		if after.Records < l.Records || after.Last[key].Time.IsZero() && after.Records == 0 {
			t.Errorf("%d records before, %d with one more", l.Records, after.Records)
		}
	})
}

// BenchmarkRemovals is the cost of recording a removal, with its share of the writes.
func BenchmarkRemovals(b *testing.B) {
	d, _ := openTemp(b)
	r := NewRemovals(d, 0)
	now := time.Unix(1, 0)
	b.SetBytes(removalBytes)
	for n := 0; b.Loop(); n++ {
		r.Add(now, numbered(uint64(n)), tier.CauseBound)
	}
	r.Flush()
}

// A folder or a link with the name of a log is a damaged place, and does not hide the other file.
func TestRemovalLogThatIsNoFile(t *testing.T) {
	d, path := openTemp(t)
	r := NewRemovals(d, 0)
	r.Add(time.Unix(1000, 0), numbered(1), tier.CauseGC)
	r.Flush()
	if err := os.Mkdir(filepath.Join(path, RemovalsOld), 0o700); err != nil {
		t.Fatal(err)
	}
	if l := readAll(t, d, numbered(1)); l.Records != 1 || l.Damaged != 1 || l.Last[numbered(1)].Cause != tier.CauseGC {
		t.Errorf("beside a folder: %+v", l)
	}
}
