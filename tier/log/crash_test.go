package log_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// writerDir names the environment variable that makes the test binary a writer into that directory.
const writerDir = "KVLANE_TEST_LOG_WRITER_DIR"

// A process that is killed at any moment leaves no torn block, and every block of which it said that it is stored.
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
		if n := killMany(t, rng, rounds); n == 0 {
			t.Error("nothing was stored")
		} else {
			t.Logf("%d blocks were stored in %d kills", n, rounds)
		}
	}
}

// killMany kills one writer after the other in a directory, and says how many blocks they stored.
func killMany(t *testing.T, rng *rand.Rand, rounds int) int {
	t.Helper()
	c := killConfig(t.TempDir())
	stored := make(map[int]bool)
	for round := range rounds {
		for _, n := range killWriter(t, c.Dir, time.Duration(1+rng.IntN(30))*time.Millisecond) {
			stored[n] = true
		}
		r, err := log.Verify(t.Context(), c.Dir, nil)
		if err != nil || len(damaged(r)) > 0 {
			t.Fatalf("after a kill: %+v, %v", r, err)
		}
		tr, err := log.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		evicted := tr.Stats().Evictions // what was evicted is no loss, and nothing is: the bound is never reached
		checked := 0
		for n := range stored { // in any order: some of them each time, and all in the end
			if checked++; checked > 200 && round < rounds-1 {
				break
			}
			if err := get(t, tr, c.Formats[0], tiertest.Key(n)); err != nil {
				t.Fatalf("block %d, of which it said that it is stored (%d evicted): %v", n, evicted, err)
			}
		}
		closeTier(t, tr)
	}
	return len(stored)
}

// damaged is what was found but for what a process that died left.
func damaged(r log.Report) (bad []string) {
	for _, f := range r.Findings {
		if f.Problem != "leftover" {
			bad = append(bad, fmt.Sprint(f))
		}
	}
	return bad
}

// killWriter starts a writer and kills it when it has written for so long. It returns the blocks that it said are stored.
func killWriter(t *testing.T, dir string, after time.Duration) (stored []int) {
	t.Helper()
	tiertest.Kill(t, writerDir+"="+dir, after, func(out *bufio.Scanner) {
		for out.Scan() {
			if n, err := strconv.Atoi(strings.TrimSpace(out.Text())); err == nil {
				stored = append(stored, n)
			}
		}
	})
	return stored
}

func killConfig(dir string) log.Config {
	l, err := block.NewLayout([]int64{9 << 10, 3000})
	if err != nil {
		panic(err)
	}
	c := log.Config{Dir: dir, Formats: block.Formats{{Layout: l, Identity: block.Digest{1}}}, SegmentBytes: 1 << 20}
	log.GroupBytes(&c, 2*l.ImageBytes()) // so that several segments are appended to
	return c
}

// writeUntilKilled is what the child process does: it writes, and says a line for each block that is stored.
func writeUntilKilled(dir string) {
	c := killConfig(dir)
	tr, err := log.Open(context.Background(), c)
	if err != nil {
		panic(err)
	}
	say("writing")
	for w := range 4 {
		go func() {
			rng := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(w)))
			for {
				if err := writeSome(tr, c.Formats[0], rng); err != nil {
					panic(err)
				}
			}
		}()
	}
	select {}
}

// say prints a line for the parent.
func say(what any) {
	if _, err := fmt.Fprintln(os.Stdout, what); err != nil {
		panic(err)
	}
}

func writeSome(tr *log.Tier, f block.Format, rng *rand.Rand) error {
	const some = 4
	numbers, keys, srcs, errs := [some]int{}, make([]block.Key, some), make([]mem.Extent, some), make([]error, some)
	for i := range some {
		b, err := hostmem.Alloc(f.Layout.ImageBytes())
		if err != nil {
			return err
		}
		defer func() { _ = hostmem.Free(b) }()
		r, err := hostmem.Region(b)
		if err != nil {
			return err
		}
		numbers[i] = rng.IntN(50000) // most are new, so that every kill hits writing
		keys[i], srcs[i] = tiertest.Key(numbers[i]), mem.All(r)
		tiertest.Fill(f, b, keys[i], 0)
		if err := f.Seal(b, keys[i]); err != nil {
			return err
		}
	}
	tr.PutMany(context.Background(), keys, srcs, errs)
	for i, n := range numbers {
		if errs[i] == nil {
			say(n)
		}
	}
	return errors.Join(errs...)
}
