package stress

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier/file"
)

// mischief damages a round's directories while workers use them: the files of victim blocks, and
// foreign files. It also runs gc and verify, as other programs would.
type mischief struct {
	*round
	rng    *rand.Rand
	canary string // file that links point to and that must not change
}

const canaryText = "nobody may change this"

func newMischief(r *round) *mischief {
	m := &mischief{round: r, rng: rand.New(rand.NewPCG(r.rng.Uint64(), 3)), canary: filepath.Join(r.TempDir(), "canary")}
	if err := os.WriteFile(m.canary, []byte(canaryText), 0o600); err != nil {
		r.Fatal(err)
	}
	return m
}

// act waits a little and does one thing.
func (m *mischief) act() {
	time.Sleep(time.Duration(5+m.rng.IntN(60)) * time.Millisecond)
	dir := m.Dirs[m.rng.IntN(len(m.Dirs))]
	name := filepath.Join(dir, m.victim())
	var what string
	switch x := m.rng.IntN(100); {
	case x < 50:
		what = m.damage(name)
	case x < 80:
		what = m.replace(name)
	case x < 85 && !m.Alone: // its owner would look dead, and the neighbour remove blocks that it has leased
		what = "tmp removed"
		_ = os.RemoveAll(filepath.Join(dir, "tmp"))
	case x < 88:
		what = "foreign file"
		_ = os.WriteFile(filepath.Join(dir, fmt.Sprintf("foreign-%d", m.rng.IntN(4))), []byte("x"), 0o600)
	case x < 90:
		what = "disk full"
		m.fill()
	case x < 92:
		what = "stranger"
		m.stranger()
	case x < 94:
		what = "times"
		m.moveTimes(dir)
	case x < 96:
		what = "gc"
		m.collect(dir)
	default:
		what = "verify"
		m.verify(dir)
	}
	if what != "" {
		m.tally.add("harm "+what, 1)
	}
}

// victim returns the relative name of a block's file that may be damaged.
func (m *mischief) victim() string {
	for {
		n := m.rng.IntN(keySpace)
		if m.rng.IntN(2) == 0 {
			n %= 2 * slots
		}
		if victim(n) {
			s := m.keys[n].String()
			return filepath.Join(s[:2], s)
		}
	}
}

// damage changes a byte of a file or truncates it, if the file exists.
func (m *mischief) damage(name string) string {
	f, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	off := m.rng.Int64N(m.layout.ImageBytes())
	if m.rng.IntN(4) == 0 {
		_ = f.Truncate(off)
		return "file cut"
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, off); err != nil {
		return ""
	}
	b[0] ^= 1 << m.rng.IntN(8)
	_, _ = f.WriteAt(b, off)
	return "bit flipped"
}

// replace removes a file, and may put another kind of file in its place.
func (m *mischief) replace(name string) string {
	if os.RemoveAll(name) != nil {
		return ""
	}
	switch m.rng.IntN(5) {
	case 0:
		_ = syscall.Mkfifo(name, 0o600)
		return "FIFO"
	case 1:
		_ = os.Symlink(m.canary, name)
		return "link"
	case 2:
		_ = os.MkdirAll(filepath.Join(name, "within"), 0o700)
		return "folder"
	case 3:
		_ = os.WriteFile(name, make([]byte, m.layout.ImageBytes()), 0o600)
		return "zeroes"
	}
	return "removed"
}

// fill makes the disk full for a while. Workers may be killed and restarted meanwhile.
func (m *mischief) fill() {
	if os.WriteFile(m.fullName(), nil, 0o600) == nil {
		time.Sleep(time.Duration(m.rng.IntN(500)) * time.Millisecond)
		_ = os.Remove(m.fullName())
	}
}

// stranger opens the directories with another identity, which must be refused.
func (m *mischief) stranger() {
	s := m.setup
	s.Model += "-stranger"
	sh, err := s.shape()
	if err != nil {
		m.Error(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	t, err := file.Open(ctx, file.Config{Dirs: m.Dirs, SharedBound: true, Formats: block.Formats{sh.format()}, Identities: []block.Identity{sh.id}})
	if err == nil {
		m.Errorf("directories of another identity were opened: %v", t.Close(ctx))
	} else if !errors.Is(err, errdefs.ErrMismatch) {
		m.Errorf("open directories of another identity: %v", err)
	}
}

// moveTimes sets wrong file times of some blocks, like a process with a wrong clock.
func (m *mischief) moveTimes(dir string) {
	at := time.Now().Add(time.Duration(m.rng.IntN(200)-100) * time.Hour)
	for range 64 {
		s := m.keys[m.rng.IntN(keySpace)].String()
		_ = os.Chtimes(filepath.Join(dir, s[:2], s), at, at) // the file may not exist
	}
}

func (m *mischief) collect(dir string) {
	target := int64(everything)
	if m.Bytes > 0 && !m.Alone {
		target = m.Bytes / int64(len(m.Dirs)) / 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if _, err := file.GC(ctx, dir, target, nil); err != nil {
		m.tally.add("harm gc told of an error", 1)
		if ctx.Err() != nil {
			m.Errorf("gc: %v", err)
		}
	}
}

// verify runs Verify while workers write. Without other damage, only victim blocks may be reported.
func (m *mischief) verify(dir string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*grace)
	defer cancel()
	began := time.Now()
	rep, err := file.Verify(ctx, dir, nil)
	m.tally.waited("Verify", time.Since(began))
	if err != nil {
		m.Errorf("verify: %v", err)
	}
	m.findings(rep)
}

func (m *mischief) findings(rep file.Report) {
	for _, f := range rep.Findings {
		m.tally.add("findings "+string(f.Problem), 1)
		n, ok := m.nameOf(f.Path)
		if f.Problem == file.Damaged && !m.Corrupt && (!ok || !victim(n)) {
			m.Errorf("verify: unexpected finding %+v, block %d", f, n)
		}
	}
}

func (m *mischief) nameOf(path string) (int, bool) {
	for n, k := range m.keys {
		if k.String() == filepath.Base(path) {
			return n, true
		}
	}
	return 0, false
}

// check checks the directories after all processes have ended.
func (r *round) check(m *mischief) {
	for _, dir := range r.Dirs {
		if _, err := os.Stat(dir); r.Bytes > 0 && errors.Is(err, fs.ErrNotExist) {
			r.tally.add("folders reclaimed", 1) // after its last worker ended, the neighbour reclaimed it for the shared bound
			return
		}
	}
	for _, dir := range r.Dirs {
		if _, err := file.GC(r.Context(), dir, everything, nil); err != nil { // removes temporary files of killed processes
			r.tally.add("harm gc told of an error", 1)
		}
		rep, err := file.Verify(r.Context(), dir, nil)
		if err != nil {
			r.Errorf("verify at the end: %v", err)
		}
		m.findings(rep)
		for _, f := range rep.Findings {
			if f.Problem == file.Leftover {
				r.Errorf("leftover file: %+v", f)
			}
		}
		if rep.LiveSessions != 0 {
			r.Errorf("%d sessions live on", rep.LiveSessions)
		}
	}
	if text, err := os.ReadFile(m.canary); err != nil || string(text) != canaryText {
		r.Errorf("a link was followed: %q, %v", text, err)
	}
	if r.Alone {
		r.checkBound()
	}
	r.checkBlocks()
}

// checkBound checks that the directories keep to their bound, not counting foreign files.
func (r *round) checkBound() {
	var stored int64
	for _, dir := range r.Dirs {
		in, err := file.Inspect(r.Context(), dir)
		if err != nil {
			r.Error(err)
		}
		stored += in.Bytes
	}
	if most := r.Bytes * 5 / 4; stored > most {
		r.Errorf("the directories hold %d bytes, and their bound is %d", stored, r.Bytes)
	}
}

// checkBlocks reads every block as a tier does. Blocks that are found must be right, and durable
// blocks must be found.
func (r *round) checkBlocks() {
	ctx := r.Context()
	t, err := file.Open(ctx, file.Config{Dirs: r.Dirs, Formats: block.Formats{r.format()}, ReadOnly: true})
	if err != nil {
		r.Error(err)
		return
	}
	defer t.Close(ctx)
	b, err := hostmem.Alloc(r.layout.ImageBytes())
	if err != nil {
		r.Error(err)
		return
	}
	defer hostmem.Free(b) //nolint:errcheck // testkit detects memory that is not freed
	region, err := hostmem.Region(b)
	if err != nil {
		r.Error(err)
		return
	}
	want, got := make([]byte, r.blockBytes()), make([]byte, 0, r.blockBytes())
	for n, key := range r.keys {
		err := t.Get(ctx, key, mem.All(region))
		switch {
		case err == nil && ghost(n):
			r.Errorf("block %d is found, but was never dumped", n)
		case err == nil:
			got = got[:0]
			for i := range r.layout.Shards() {
				got = append(got, b[r.layout.ShardOff(i):][:r.layout.ShardBytes(i)]...)
			}
			if r.put(want, n); string(got) != string(want) {
				r.Errorf("block %d has wrong bytes and the checksums of these", n)
			}
			r.tally.add("blocks stored and checked", 1)
		case r.durable[n] && r.Bytes == 0 && !victim(n):
			r.Errorf("block %d was durable: %v", n, err)
		case r.durable[n]:
			r.tally.add("blocks durable, then harmed or evicted", 1)
		}
		if err == nil && r.durable[n] {
			r.tally.add("blocks durable and checked", 1)
		}
	}
}
