package log_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// writerDir names an environment variable. If it is set, the test binary writes blocks into that
// directory until it is killed.
const writerDir = "KVLANE_TEST_LOG_WRITER_DIR"

// A process may be killed at any time, also while it frees space or writes a checkpoint. No block
// may be torn, all blocks that it reported as retained must be found, and none that it reported as
// deleted.
func TestDefect7KilledWriterLeavesNoTornBlock(t *testing.T) {
	dirs, rounds := 1, 25
	switch {
	case testing.Short():
		rounds = 8
	case testkit.Required("crash"):
		dirs = 4
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range dirs {
		killMany(t, rng, rounds)
	}
}

// killMany kills several writers in a directory, one after another.
func killMany(t *testing.T, rng *rand.Rand, rounds int) {
	t.Helper()
	c := killConfig(t.TempDir())
	printed := make(map[int]byte) // last printed state of each block
	lines := 0
	for round := range rounds {
		lines += killWriter(t, c.Dir, time.Duration(1+rng.IntN(30))*time.Millisecond, printed)
		r, err := log.Verify(t.Context(), c.Dir, nil)
		if err != nil || len(damaged(r)) > 0 {
			t.Fatalf("after a kill: %+v, %v", r, err)
		}
		c.ReadOnly = round%2 == 0 // then it leaves temporary files to the next round
		tr, err := log.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for n, what := range printed {
			err := get(t, tr, c.Formats[0], tiertest.Key(n))
			if what == isRetained && err != nil || what == isDeleted && !errors.Is(err, errdefs.ErrNotFound) {
				t.Fatalf("block %d, which the writer reported as %q: %v", n, what, err)
			}
		}
		closeTier(t, tr)
	}
	files := segmentFiles(t, c.Dir)
	_, last, _ := strings.Cut(filepath.Base(files[len(files)-1]), "-")
	made, err := strconv.ParseUint(last, 16, 32)
	if t.Logf("the writers printed %d lines in %d kills; %d of %d segments are left", lines, rounds, len(files), made); err != nil || lines == 0 {
		t.Errorf("%v: the test does not test", err)
	}
	if rounds > 20 && made < uint64(len(files))+5 { // a slow machine creates few segments
		t.Error("few segments were collected: the test does not test")
	}
}

// damaged returns the findings, except temporary files of dead processes.
func damaged(r log.Report) (bad []string) {
	for _, f := range r.Findings {
		if f.Problem != "leftover" {
			bad = append(bad, fmt.Sprint(f))
		}
	}
	return bad
}

// First characters of the lines that a writer prints, before the number of the block.
const (
	isRetained = '+'
	isDeleted  = '-'
	isUnsure   = '?'
)

// killWriter starts a writer and kills it after the given time. It records the last line of each
// block in printed, and returns the number of lines.
func killWriter(t *testing.T, dir string, after time.Duration, printed map[int]byte) (lines int) {
	t.Helper()
	tiertest.Kill(t, writerDir+"="+dir, after, func(out *bufio.Scanner) {
		for out.Scan() {
			line := out.Text()
			if n, err := strconv.Atoi(line[1:]); err == nil {
				printed[n] = line[0]
				lines++
			}
		}
	})
	return lines
}

// killBound is the bound of the log: a few segments, so that the writer evicts blocks between
// kills.
const killBound = 12 << 20

func killConfig(dir string) log.Config {
	l, err := block.NewLayout([]int64{9 << 10, 3000})
	if err != nil {
		panic(err)
	}
	c := log.Config{Dir: dir, Formats: block.Formats{{Layout: l, Identity: block.Digest{1}}}, SegmentBytes: 1 << 20}
	log.GroupBytes(&c, 2*l.ImageBytes()) // so that the writer appends to several segments
	log.CheckpointBytes(&c, 2<<20)
	return c
}

// writeUntilKilled runs in the child process. It writes blocks that may be evicted, and retains and
// deletes other blocks. It prints a line for each of the latter.
func writeUntilKilled(dir string) {
	c := killConfig(dir)
	tr, err := log.Open(context.Background(), c)
	if err != nil {
		panic(err)
	}
	k := keeper{tr: tr, f: c.Formats[0]}
	for n := range k.has { // before the writer evicts anything
		k.retain(n)
	}
	log.Bound(tr, killBound)
	printLine("writing")
	for w := range 4 {
		go func() {
			rng := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(w)))
			for {
				step := k.step
				if w > 0 {
					step = func(rng *rand.Rand) error { return writeSome(tr, c.Formats[0], len(k.has)+rng.IntN(50000), 4) }
				}
				if err := step(rng); err != nil {
					panic(err)
				}
			}
		}()
	}
	select {}
}

// keeper retains and deletes its own blocks.
type keeper struct {
	tr  *log.Tier
	f   block.Format
	has [40]bool
}

func (k *keeper) retain(n int) {
	if found, err := k.tr.Retain(context.Background(), keys(n, n+1)); err != nil {
		panic(err)
	} else if k.has[n] = found == 1; k.has[n] {
		printLine(fmt.Sprintf("%c%d", isRetained, n))
	}
}

func (k *keeper) step(rng *rand.Rand) error {
	n := rng.IntN(len(k.has))
	printLine(fmt.Sprintf("%c%d", isUnsure, n))
	if !k.has[n] {
		err := writeSome(k.tr, k.f, n, 1)
		k.retain(n)
		return err
	}
	k.tr.Release(keys(n, n+1))
	k.has[n] = false
	err := k.tr.Delete(context.Background(), tiertest.Key(n))
	switch {
	case err == nil:
		printLine(fmt.Sprintf("%c%d", isDeleted, n))
	case errors.Is(err, errdefs.ErrNotFound), errors.Is(err, errdefs.ErrNoSpace): // it was evicted, or cannot be deleted now
		return nil
	}
	return err
}

// printLine prints a line for the parent.
func printLine(what any) {
	if _, err := fmt.Fprintln(os.Stdout, what); err != nil {
		panic(err)
	}
}

// writeSome puts n blocks, starting with number from.
func writeSome(tr *log.Tier, f block.Format, from, n int) error {
	which, srcs, errs := keys(from, from+n), make([]mem.Extent, n), make([]error, n)
	for i, key := range which {
		b, err := hostmem.Alloc(f.Layout.ImageBytes())
		if err != nil {
			return err
		}
		defer func() { _ = hostmem.Free(b) }()
		r, err := hostmem.Region(b)
		if err != nil {
			return err
		}
		srcs[i] = mem.All(r)
		tiertest.Fill(f, b, key, 0)
		if err := f.Seal(b, key); err != nil {
			return err
		}
	}
	tr.PutMany(context.Background(), which, srcs, errs)
	return errors.Join(errs...)
}
