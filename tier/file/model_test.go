package file_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs/faultfs"
	"github.com/kvlane/kvlane/internal/fault"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// TestModel runs a random sequence of operations, drawn from a seed, of two processes that share
// directories. Either process may be killed at any time, the power may fail, and the disk may be
// full. It checks:
//
// - Each operation agrees with the files: a sound block is read correctly, a torn block returns
// ErrCorrupt once and is then a miss, and a block that was not stored is a miss. - A stored block
// stays until it is deleted or evicted, and evictions are counted. This also holds after its
// process was killed. - A block stored with FsyncFile is sound after a power failure, even if
// another process has written it without fsync. - After any crash the directory can be opened.
// Verify finds exactly the torn blocks and the temporary files of dead processes. - A pinned block
// stays until it is unpinned, also after a crash. - The counters are right.
//
// KVLANE_FILE_SEEDS=n runs n seeds instead of the fixed and a random one. KVLANE_FILE_SEED=x runs
// only that seed.
func TestModel(t *testing.T) {
	t.Parallel()
	for _, c := range []modelConfig{
		{name: "never"},
		{name: "file", fsync: [2]file.FsyncPolicy{file.FsyncFile, file.FsyncFile}},
		{name: "both", fsync: [2]file.FsyncPolicy{file.FsyncNever, file.FsyncFile}},
		{name: "both,bounded", fsync: [2]file.FsyncPolicy{file.FsyncFile, file.FsyncNever}, bound: 6},
		{name: "file,bounded", fsync: [2]file.FsyncPolicy{file.FsyncFile, file.FsyncFile}, bound: 6},
		{name: "file,racing", fsync: [2]file.FsyncPolicy{file.FsyncFile, file.FsyncFile}, racing: true},
		{name: "file,bounded,racing", fsync: [2]file.FsyncPolicy{file.FsyncFile, file.FsyncFile}, bound: 6, racing: true},
		{name: "both,direct", fsync: [2]file.FsyncPolicy{file.FsyncNever, file.FsyncFile}, direct: true},
		{name: "file,bounded,racing,direct", fsync: [2]file.FsyncPolicy{file.FsyncFile, file.FsyncFile}, bound: 6, racing: true, direct: true},
		{name: "both,two directories", fsync: [2]file.FsyncPolicy{file.FsyncNever, file.FsyncFile}, dirs: 2},
		{name: "both,bounded,two directories", fsync: [2]file.FsyncPolicy{file.FsyncNever, file.FsyncFile}, dirs: 2, bound: 6},
	} {
		for _, seed := range modelSeeds(t) {
			t.Run(fmt.Sprintf("%s/seed=%d", c.name, seed), func(t *testing.T) {
				t.Parallel()
				// In a synctest bubble, time advances while all goroutines are blocked, so pauses
				// take no real time.
				synctest.Test(t, func(t *testing.T) { runModel(t, c, seed) })
			})
		}
	}
}

type modelConfig struct {
	name  string
	fsync [2]file.FsyncPolicy
	dirs  int // default: 1
	bound int // blocks; 0 is unbounded
	// racing lets both processes store a block at the same time. The result is then not determined
	// by the seed.
	racing bool
	direct bool // blocks are stored and read directly
}

const (
	modelKeys      = 16
	modelBuckets   = 3
	modelSteps     = 250
	modelStepsFast = 60
)

// blockState is the state of a block's file.
type blockState uint8

const (
	absent blockState = iota
	whole
	torn
	unknown // an operation on the file crashed, so the file may be in either state
)

// modelBlock is the expected state of a block.
type modelBlock struct {
	state    blockState
	tried    bool // a process tried to store it
	promised bool // a Put with FsyncFile stored it, and no process has removed it since
	pin      pinState
	// mayRevert: a power failure may undo the last change of the pin, which crashed or failed.
	mayRevert bool
	unsynced  bool // the disk has, or may get back, a torn file of the block
}

// life is a process from its start to its end, with its expected counters.
type life struct {
	*proc
	hits, misses, puts, corrupt int64
	evictions                   int64 // counted so far
	inexact                     bool  // failures make the counters inexact
	armed, crashed              bool  // armed: the process will crash; crashed: its operations fail
}

type model struct {
	*machine
	c       modelConfig
	rng     *rand.Rand
	images  [modelKeys]mem.Extent
	dst     mem.Extent
	lives   [2]*life
	blocks  [modelKeys]modelBlock
	full    bool
	raced   bool  // both processes stored blocks since the files were last compared
	evicted int64 // blocks evicted by processes that were killed during their start
	history []string
}

func runModel(t *testing.T, c modelConfig, seed uint64) {
	t.Helper()
	m := &model{machine: newMachine(t, c.direct), c: c, rng: rand.New(rand.NewPCG(seed, 0x66696c65))}
	m.dst = tiertest.Buffer(t, m.format.Layout.ImageBytes())
	for i := range m.images {
		m.images[i] = image(t, m.format, modelKey(i))
	}
	defer func() {
		if t.Failed() {
			t.Logf("KVLANE_FILE_SEED=%d, %s:\n%s", seed, c.name, strings.Join(m.history, "\n"))
		}
	}()
	m.fixIDs()
	for i := range m.lives {
		m.start(i)
	}
	steps := modelSteps
	if testing.Short() {
		steps = modelStepsFast
	}
	for range steps {
		time.Sleep(time.Millisecond) // so that no two files have the same time
		m.step()
		m.observe()
		m.endCrashed()
	}
	m.finish()
}

func (m *model) log(format string, args ...any) {
	m.history = append(m.history, fmt.Sprintf(format, args...))
}

func (m *model) step() {
	i := m.rng.IntN(len(m.lives))
	k := m.rng.IntN(modelKeys)
	switch x := m.rng.IntN(100); {
	case x < 10 && m.c.racing:
		m.race(k)
	case x < 42:
		m.putOne(i, k)
	case x < 57:
		m.getOne(i, k)
	case x < 61:
		m.retainOne(i, k)
	case x < 64:
		m.pinOne(i, k)
	case x < 66:
		m.lookupAll(i)
	case x < 73:
		m.deleteOne(i, k)
	case x < 76:
		m.collect(i)
	case x < 80:
		m.log("a minute passes")
		time.Sleep(2 * time.Minute)
	case x < 83:
		m.reopen(i)
	case x < 86:
		m.killOne(i)
	case x < 93:
		m.arm(i)
	case x < 96:
		m.powerFails()
	default:
		m.fill()
	}
}

// putOne stores a block.
func (m *model) putOne(i, k int) {
	err := m.lives[i].store(m.Context(), modelKey(k), m.images[k])
	m.stored(i, k, m.blocks[k].state, err)
}

// stored updates the model after a Put of a block whose state was was.
func (m *model) stored(i, k int, was blockState, err error) {
	m.log("%d puts %d: %v", i, k, err)
	l, b := m.lives[i], &m.blocks[k]
	b.tried = true
	if was != whole && m.c.fsync[i] == file.FsyncNever {
		b.unsynced = true
	}
	switch {
	case m.crashed(l, err):
		if was != whole {
			b.state = unknown
			m.dropPin(k, true)
		}
		return
	case err == nil:
		b.state = whole
		if was != whole {
			l.puts++
		}
		if m.c.fsync[i] == file.FsyncFile {
			b.promised = true
		}
	case m.full && was != whole && errors.Is(err, errdefs.ErrNoSpace):
		b.state = absent
		l.inexact = true
		if was == torn {
			m.dropPin(k, false)
		}
	default:
		m.Fatalf("%d puts %d: %v", i, k, err)
	}
	if was == torn {
		l.corrupt++
		m.dropPin(k, false)
	}
}

// getOne reads a block and checks the result against the file.
func (m *model) getOne(i, k int) {
	l, b := m.lives[i], &m.blocks[k]
	if m.c.direct && b.state == whole && !l.armed {
		tiertest.WantDirect(m.T, l, m.format, modelKey(k))
		l.hits++
	}
	clear(m.dst.Bytes())
	err := l.Get(m.Context(), modelKey(k), m.dst)
	m.log("%d gets %d: %v", i, k, err)
	switch {
	case m.crashed(l, err):
		if b.state == torn {
			b.state = unknown
			m.dropPin(k, true)
		}
	case b.state == whole && err == nil:
		if !bytes.Equal(m.dst.Bytes(), m.images[k].Bytes()) {
			m.Fatalf("block %d has wrong bytes", k)
		}
		l.hits++
	case b.state == torn && errors.Is(err, errdefs.ErrCorrupt):
		l.corrupt++
		l.misses++
		b.state = absent
		m.dropPin(k, false)
	case b.state == absent && errors.Is(err, errdefs.ErrNotFound):
		l.misses++
	default:
		m.Fatalf("block %d is %+v, but Get returned %v", k, *b, err)
	}
}

// fixIDs gives two directories fixed ids, so that the seed determines which directory a block
// belongs to.
func (m *model) fixIDs() {
	if m.c.dirs < 2 {
		return
	}
	p := m.machine.start(m.config(0))
	m.must(p.Close(m.Context()))
	p.dead = true
	const before, sum = `"directory": "`, `"sum"`
	for n, dir := range m.config(0).Dirs {
		f, err := m.root().Open(dir[1:]+"/kvlane.json", os.O_RDWR)
		m.must(err)
		b := make([]byte, 4096)
		_, err = f.ReadAt(b, 0)
		at := bytes.Index(b, []byte(before)) + len(before)
		if at < len(before) {
			m.Fatalf("no id in %q, %v", b, err)
		}
		_, err = f.WriteAt(bytes.Repeat([]byte{'a' + byte(n)}, 32), int64(at))
		m.must(err)
		// Write the checksum field under another name, so that the marker is not checked against
		// it.
		_, err = f.WriteAt([]byte(`"its"`), int64(bytes.Index(b, []byte(sum))))
		m.must(errors.Join(err, f.Sync(), f.Close()))
	}
}

func (m *model) config(i int) file.Config {
	c := file.Config{Fsync: m.c.fsync[i], MaxBytes: int64(m.c.bound) * m.format.Layout.ImageBytes()}
	for n := range max(1, m.c.dirs) {
		c.Dirs = append(c.Dirs, fmt.Sprintf("/srv/kv%d", n))
	}
	return c
}

// start starts a process. Sometimes it first starts processes that crash while they open the
// directories.
func (m *model) start(i int) {
	for m.rng.IntN(6) == 0 {
		op := []string{"open", "stat", "mkdir", "rename", "remove", "write", "sync", "sync", "sync", "lock"}[m.rng.IntN(10)]
		n := m.rng.IntN(6)
		p, err := m.tryStart(m.config(i), fault.New(1, fault.Nth(op, n).Crash()))
		m.log("%d opens with a crash at %s %d: %v", i, op, n, err)
		if err == nil {
			synctest.Wait()
			m.evicted += p.Stats().Evictions
			m.kill(p)
		} else if !errors.Is(err, faultfs.ErrCrashed) && (!m.full || !errors.Is(err, errdefs.ErrNoSpace)) {
			m.Fatal(err)
		}
	}
	p, err := m.tryStart(m.config(i), nil)
	m.log("%d opens: %v", i, err)
	if m.full && errors.Is(err, errdefs.ErrNoSpace) {
		m.fill()
		p, err = m.tryStart(m.config(i), nil)
	}
	m.must(err)
	m.lives[i] = &life{proc: p, inexact: m.full}
	m.observe() // a power failure may have restored more blocks than the bound allows
}

// crashed reports whether err comes from a planned crash, and records the crash.
func (m *model) crashed(l *life, err error) bool {
	if !errors.Is(err, faultfs.ErrCrashed) {
		return false
	}
	l.crashed, l.inexact = true, true
	return true
}

// modelKey returns key i.
func modelKey(i int) (key [32]byte) { return bucketKey(byte(i%modelBuckets), i) }

// states returns the states of all files.
func (m *model) states() (found [modelKeys]blockState) {
	process := m.disk.Process()
	defer process.Kill()
	for _, dir := range m.config(0).Dirs {
		d, err := process.OpenDir(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		m.must(err)
		for k := range modelKeys {
			f, err := d.Open(path("", modelKey(k)), os.O_RDONLY)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			m.must(err)
			info, err := f.Stat()
			m.must(err)
			b := make([]byte, info.Bytes)
			_, err = f.ReadAt(b, 0)
			m.must(errors.Join(err, f.Close()))
			if found[k] != absent {
				m.Fatalf("block %d is in two directories", k)
			}
			found[k] = torn
			if bytes.Equal(b, m.images[k].Bytes()) {
				found[k] = whole
			}
		}
	}
	return found
}

// observe compares the files with the model, and detects evicted blocks.
func (m *model) observe() {
	synctest.Wait() // for removals in the background
	vanished, evicted := int64(0), m.evicted
	m.evicted = 0
	for _, l := range m.lives {
		if l == nil {
			continue
		}
		n := l.Stats().Evictions
		evicted += n - l.evictions
		l.evictions = n
	}
	m.observePins()
	var gone []int
	for k, is := range m.states() {
		b := &m.blocks[k]
		switch {
		case is == b.state:
		case b.state == unknown && (is != torn || b.unsynced):
		case is == absent:
			if b.pin == pinned {
				m.Fatalf("pinned block %d was evicted", k)
			}
			vanished++
			gone = append(gone, k)
		default:
			m.Fatalf("block %d is %d, and should be %+v", k, is, *b)
		}
		b.state = is
		b.promised = b.promised && is != absent
	}
	// A block that was evicted while both processes stored blocks may have been stored again.
	if next := evicted - vanished; next != 0 && (!m.raced || next < 0 || next > 2) {
		m.Fatalf("blocks %v are gone, and %d evictions are counted", gone, evicted)
	}
	if evicted > 0 {
		m.log("evicted: %v", gone)
	}
	m.raced = false
}

func (m *model) present() (n int64) {
	for _, b := range m.blocks {
		if b.state != absent {
			n++
		}
	}
	return n
}

// finish reads all blocks, closes all processes and checks the counters and the directory.
func (m *model) finish() {
	if m.full {
		m.fill()
		m.observe()
	}
	for i := range m.lives {
		m.reopen(i) // no crashes from now on
	}
	m.endCrashed()
	for k := range modelKeys {
		m.getOne(0, k)
		m.getOne(1, k)
		m.observe()
	}
	for i, l := range m.lives {
		m.must(l.Close(m.Context()))
		l.dead = true
		m.counts(i)
	}
	process := m.disk.Process()
	defer process.Kill()
	for _, dir := range m.config(0).Dirs {
		r, err := file.VerifyOn(m.Context(), process, dir)
		if err != nil || !r.Clean() || r.LiveSessions != 0 {
			m.Errorf("the final verify: %+v, %v", r, err)
		}
	}
}

// verify checks that Verify finds the torn blocks and the files of dead processes, and nothing
// else.
func (m *model) verify() {
	process := m.disk.Process()
	defer process.Kill()
	var damaged, want []string
	for _, dir := range m.config(0).Dirs {
		r, err := file.VerifyOn(m.Context(), process, dir)
		if errors.Is(err, errdefs.ErrNotFound) {
			continue // no process has opened the directory
		}
		m.must(err)
		for _, f := range r.Findings {
			switch f.Problem {
			case file.Damaged:
				damaged = append(damaged, f.Path[strings.LastIndexByte(f.Path, '/')+1:])
			case file.Leftover:
			default:
				m.Fatalf("found %+v", f)
			}
		}
	}
	for k, b := range m.blocks {
		if b.state == torn {
			want = append(want, fmt.Sprintf("%x", modelKey(k)))
		}
	}
	slices.Sort(damaged)
	slices.Sort(want)
	if !slices.Equal(damaged, want) {
		m.Fatalf("damaged are %q, found %q", want, damaged)
	}
}
