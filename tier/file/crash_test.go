package file_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/sys/hostmem"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// writerDir names an environment variable. If it is set, the test binary writes blocks into that
// directory until it is killed.
const writerDir = "KVLANE_TEST_FILE_WRITER_DIR"

// A process that is killed at any time leaves no torn block. The next process removes its temporary
// files.
func TestDefect7KilledWriterLeavesNoTornBlock(t *testing.T) {
	const rounds = 8
	c := killConfig(t.TempDir())
	rng := rand.New(rand.NewPCG(1, 2))
	concurrent := open(t, c) // stays open during all rounds
	var swept int64
	for range rounds {
		tiertest.Kill(t, writerDir+"="+c.Dirs[0], time.Duration(1+rng.IntN(30))*time.Millisecond, nil)
		tr, err := file.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		swept += tr.Stats().Swept
		if err := tr.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		r, err := file.Verify(t.Context(), c.Dirs[0], nil)
		if err != nil || !r.Clean() || r.LiveSessions != 1 || r.Quarantined != 0 {
			t.Fatalf("after a kill: %+v, %v", r, err)
		}
	}
	n := 0
	err := file.List(t.Context(), c.Dirs[0], func(e file.Entry) error {
		n++
		dst := tiertest.Buffer(t, c.Formats[0].Layout.ImageBytes())
		return concurrent.Get(t.Context(), e.Key, dst)
	})
	if err != nil || n == 0 {
		t.Errorf("read %d blocks, %v", n, err)
	}
	t.Logf("%d blocks written, %d temporary files swept in %d kills", n, swept, rounds)
}

// killConfig is the configuration of the killed processes. Blocks have 256 KiB, so that many kills
// interrupt a write.
func killConfig(dir string) file.Config {
	l, err := block.NewLayout([]int64{128 << 10, 100000})
	if err != nil {
		panic(err)
	}
	return file.Config{Dirs: []string{dir}, Formats: block.Formats{{Layout: l, Identity: block.Digest{1}}}, MaxBytes: 64 * l.ImageBytes()}
}

// writeUntilKilled runs in the child process.
func writeUntilKilled(dir string) {
	c := killConfig(dir)
	tr, err := file.Open(context.Background(), c)
	if err != nil {
		panic(err)
	}
	if _, err := fmt.Fprintln(os.Stdout, "writing"); err != nil {
		panic(err)
	}
	for w := range 2 {
		go func() {
			rng := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(w)))
			for {
				if err := writeOne(tr, c.Formats[0], rng); err != nil {
					panic(err)
				}
			}
		}()
	}
	select {}
}

func writeOne(tr *file.Tier, f block.Format, rng *rand.Rand) error {
	b, err := hostmem.Alloc(f.Layout.ImageBytes())
	if err != nil {
		return err
	}
	r, err := hostmem.Region(b)
	if err != nil {
		return err
	}
	key := tiertest.Key(rng.IntN(1000))
	if err := f.Seal(b, key); err != nil {
		return err
	}
	if err := tr.Put(context.Background(), key, mem.All(r)); err != nil {
		return err
	}
	return hostmem.Free(b)
}

// Two tiers share a directory, as in two processes. Each finds the blocks of the other, both stay
// near the bound, and no block is torn.
func TestTwoTiersShareADirectory(t *testing.T) {
	const bound, n = 40, 120
	c := config(t)
	c.MaxBytes = bound * c.Formats[0].Layout.ImageBytes()
	tiers := []*file.Tier{open(t, c), open(t, c)}
	var wg sync.WaitGroup
	for w, tr := range tiers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range n {
				key := tiertest.Key(rng.IntN(n))
				if err := tr.Put(t.Context(), key, image(t, c.Formats[0], key)); err != nil {
					t.Error(err)
				}
				states := make([]tier.State, 1)
				if err := tiers[1-w].Lookup(t.Context(), []block.Key{key}, states); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for _, tr := range tiers {
		if _, err := tr.GC(t.Context(), c.MaxBytes); err != nil {
			t.Error(err)
		}
		if st := tr.Stats(); st.Blocks > bound || st.Corrupt != 0 || st.Errors != 0 {
			t.Errorf("%+v", st)
		}
	}
	if r, err := file.Verify(t.Context(), c.Dirs[0], nil); err != nil || !r.Clean() || r.Blocks > bound || r.LiveSessions != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}
