package main

import (
	"cmp"
	"context"
	_ "embed" // the trace is embedded
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/replay"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/file"
)

//go:embed conversation-400.jsonl.gz
var demoTrace []byte

// demoRequests is the number of requests in the trace.
const demoRequests = 400

// errClaim means that a claim of the demo is false.
var errClaim = errors.New("a claim of the demo does not hold")

// demoReport is the output of the demo as JSON.
type demoReport struct {
	Holds   bool        `json:"holds"`
	Claims  []demoClaim `json:"claims"`
	Seconds float64     `json:"seconds"`
}

// demoClaim is a checked statement.
type demoClaim struct {
	Claim string `json:"claim"`
	Holds bool   `json:"holds"`
}

// demo replays a trace, restarts the store and damages a file. It prints claims and whether they
// hold.
type demo struct {
	geometry block.Geometry
	// open opens an engine with a file tier in dir and a cache that is smaller than the trace's
	// blocks.
	open func(ctx context.Context, dir string) (*kvlane.Engine, error)
	// verify reads every block in dir and returns the number of sound and of damaged blocks.
	verify func(ctx context.Context, dir string) (sound, damaged int64, err error)
	dir    string // empty at the start; run does not remove it
	out    io.Writer
	errs   io.Writer // for the progress
	limit  int       // number of requests of the trace; zero: all

	blocks, trace string
	first         *replay.Report // report of the first replay
	introduced    bool           // the device was printed
	claims        []demoClaim
	failed        int   // number of claims that do not hold
	err           error // first error of writing to out
}

// run runs the demo. The error wraps errClaim if a claim does not hold.
func (d *demo) run(ctx context.Context) error {
	d.blocks, d.trace = filepath.Join(d.dir, "blocks"), filepath.Join(d.dir, "trace.jsonl.gz")
	if err := os.WriteFile(d.trace, demoTrace, 0o600); err != nil {
		return fmt.Errorf("demo: write the trace: %w", err)
	}
	start := time.Now()
	for _, part := range []func(context.Context) error{d.fromNothing, d.restart, d.damage} {
		if err := part(ctx); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	if d.failed > 0 {
		d.print(func(p *present.Page) {
			p.Text("")
			p.Verdict(present.Bad, "%d claims do NOT hold.", d.failed)
		})
		return fmt.Errorf("demo: %d checks failed: %w", d.failed, errClaim)
	}
	d.print(func(p *present.Page) {
		p.Text("")
		p.Verdict(present.Good, "All of it holds. %s.", present.Duration(time.Since(start)))
	})
	return d.err
}

func (d *demo) fromNothing(ctx context.Context) error {
	d.begin("1. A replay with an empty store.", "The first requests of a real conversation trace (Mooncake, FAST'25) run against an empty store. Each block that "+
		"a request wants is looked up by prefix; hits are loaded into GPU pages and verified there byte by byte; misses are "+
		"computed and dumped. The cache is smaller than the trace, so files serve blocks too.")
	r, err := d.replay(ctx)
	if err != nil {
		return err
	}
	d.first = r
	repeats := r.BlockAccesses - r.DistinctBlocks
	d.report("%s requests wanted %s blocks, %s of them different; %s.", present.Count(r.Requests), present.Count(r.BlockAccesses),
		present.Count(r.DistinctBlocks), present.Micros(r.Seconds*1e6))
	paths := map[string][]string{}
	for _, p := range r.Paths {
		paths[p.Direction] = append(paths[p.Direction], fmt.Sprintf("%s by %s", present.Bytes(p.Bytes), p.Path))
	}
	for _, way := range slices.Sorted(maps.Keys(paths)) {
		d.report("%s: %s.", map[string]string{"load": "Loads", "dump": "Dumps"}[way], strings.Join(paths[way], ", "))
	}
	d.claim(r.Complete && r.PrefixHits == repeats, "every block requested again was found: %s of %s", present.Count(r.PrefixHits), present.Count(repeats))
	d.claim(r.Mismatches == 0 && r.BytesVerified > 0, "all %s of loaded blocks were correct", present.Bytes(r.BytesVerified))
	d.claim(r.DumpedBlocks == r.DistinctBlocks && r.DurableErrors == 0, "all %s different blocks were stored, each once", present.Count(r.DumpedBlocks))
	return nil
}

func (d *demo) restart(ctx context.Context) error {
	d.begin("2. A restart.", "The store was closed, and its memory is gone. It is opened again on the same directory, for the same requests.")
	r, err := d.replay(ctx)
	if err != nil {
		return err
	}
	d.claim(r.Complete && r.PrefixHits == r.BlockAccesses, "no block was computed: %s hits of %s", present.Count(r.PrefixHits), present.Count(r.BlockAccesses))
	d.claim(r.HitsByTier[file.Name] >= r.DistinctBlocks, "every block was read from its file at least once: %s from files, %s from the cache",
		present.Count(r.HitsByTier[file.Name]), present.Count(r.HitsByTier[cache.Name]))
	d.claim(r.Mismatches == 0 && r.BytesVerified > d.first.BytesVerified, "all %s were correct", present.Bytes(r.BytesVerified))
	return nil
}

func (d *demo) damage(ctx context.Context) error {
	name, off, err := d.flip()
	if err != nil {
		return err
	}
	d.begin("3. Damage.", fmt.Sprintf("One bit of one file is flipped: byte %s of %s.", present.Count(off), name))
	_, damaged, err := d.verify(ctx, d.blocks)
	if err != nil {
		return err
	}
	d.claim(damaged == 1, "\"kvlane store verify\" finds it: %d damaged", damaged)
	r, err := d.replay(ctx)
	if err != nil {
		return err
	}
	d.claim(r.Corrupt == 1, "the replay finds and counts it: %d block failed its check", r.Corrupt)
	d.claim(r.Mismatches == 0, "no wrong byte reached a page: %d mismatches in %s", r.Mismatches, present.Bytes(r.BytesVerified))
	d.claim(r.PrefixHits == r.BlockAccesses-1 && r.LoadErrors == 1 && r.DumpedBlocks == 1,
		"the block was a miss, was computed again and stored again: %s of %s hits, %d dumped", present.Count(r.PrefixHits), present.Count(r.BlockAccesses), r.DumpedBlocks)
	sound, damaged, err := d.verify(ctx, d.blocks)
	if err != nil {
		return err
	}
	d.claim(sound == r.DistinctBlocks && damaged == 0, "the directory is sound again: %s blocks, %d damaged", present.Count(sound), damaged)
	return nil
}

// replay opens the engine, replays the trace and closes the engine again.
func (d *demo) replay(ctx context.Context) (_ *replay.Report, err error) {
	e, err := d.open(ctx, d.blocks)
	if err != nil {
		return nil, err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, e.Close(last))
	}()
	if !d.introduced {
		d.introduced = true
		info := e.Device().Info()
		d.report("Device: %s (%s).", info.Name, info.Driver)
		for _, n := range e.Notes() {
			d.print(func(p *present.Page) { p.Check(present.Warn, "%s", n) })
		}
	}
	shown := newProgress(d.errs, "demo", false)
	defer shown.end()
	r, err := replay.Run(ctx, replay.Config{
		Device: e.Device(), Store: e.Store(), Memory: e, Geometry: d.geometry, Identity: e.Identity(), Trace: d.trace, Limit: d.limit,
		Progress: steps(metricsOf(ctx), int64(cmp.Or(d.limit, demoRequests)), shown),
	})
	// Wrong bytes are reported by a claim. Other errors end the demo.
	if errors.Is(err, replay.ErrWrongBytes) {
		err = nil
	}
	return r, err
}

// flip inverts a bit in the first block's file.
func (d *demo) flip() (name string, off int64, err error) {
	files, err := filepath.Glob(filepath.Join(d.blocks, "[0-9a-f][0-9a-f]", "*"))
	if err != nil || len(files) == 0 {
		return "", 0, fmt.Errorf("no blocks in %s: %w", d.blocks, errors.Join(err, os.ErrNotExist))
	}
	layout, err := d.geometry.Layout()
	if err != nil {
		return "", 0, err
	}
	last := layout.Shards() - 1
	off = layout.ShardOff(last) + layout.ShardBytes(last)/2
	f, err := os.OpenFile(files[0], os.O_RDWR, 0)
	if err != nil {
		return "", 0, fmt.Errorf("damage a file: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		return "", 0, fmt.Errorf("damage a file: %w", err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b[:], off); err != nil {
		return "", 0, fmt.Errorf("damage a file: %w", err)
	}
	rel, err := filepath.Rel(d.blocks, files[0])
	return rel, off, err
}

// claim prints a claim of the demo and whether it holds.
func (d *demo) claim(holds bool, format string, args ...any) {
	mark := present.Good
	if !holds {
		mark = present.Bad
		d.failed++
	}
	d.claims = append(d.claims, demoClaim{fmt.Sprintf(format, args...), holds})
	d.print(func(p *present.Page) { p.Check(mark, format, args...) })
}

// begin prints the title and the introduction of a part.
func (d *demo) begin(title, about string) {
	d.print(func(p *present.Page) {
		if d.first != nil {
			p.Text("")
		}
		p.Verdict(present.Plain, "%s", title)
		p.Check(present.Plain, "%s", about)
	})
}

func (d *demo) report(format string, args ...any) {
	d.print(func(p *present.Page) { p.Check(present.Plain, format, args...) })
}

// print prints a part of the page immediately, because the next part may take long.
func (d *demo) print(write func(*present.Page)) {
	p := present.NewPage(present.ScreenOf(d.out))
	write(p)
	if err := p.Write(d.out); d.err == nil {
		d.err = err
	}
}
