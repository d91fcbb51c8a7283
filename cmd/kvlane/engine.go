package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// How long a command waits at its end for what the store still has to write, or hardware to do; and once it was interrupted.
const (
	closeTimeout   = 2 * time.Minute
	interruptGrace = 10 * time.Second
)

// closing returns the context of a command's end: it lasts for most although ctx may have ended, and no longer than grace from when
// it has.
func closing(ctx context.Context, most, grace time.Duration) (context.Context, context.CancelFunc) {
	c, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), most, fmt.Errorf("not closed within %v: %w", most, context.DeadlineExceeded))
	end := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-ctx.Done():
		case <-end:
			return
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-end:
		}
	})
	return c, sync.OnceFunc(func() {
		close(end)
		watching.Wait()
		cancel()
	})
}

// engineFlags select the device, the copy path and the tiers.
type engineFlags struct {
	device      string
	noGPU       error // why the device is simulated though nobody asked for that, once config has been called
	index       int
	path        string
	policy      string
	calibration string
	verify      string
	fsync       string
	rdma        rdmaFlags
	pipeline    string
	dirs        []string
	dirBytes    []string
	logDir      string
	logBytes    int64
	logFsync    string
	streamFiles bool
	cacheBytes  int64
	given       func(flag string) bool // on the command line; nil: none
	fileBytes   int64
	readOnly    bool
}

func (e *engineFlags) register(flags *pflag.FlagSet) {
	e.cacheBytes = 1 << 30
	registerAutoDevice(flags, &e.device)
	flags.IntVar(&e.index, "device-index", 0, "which of the devices")
	e.registerCopies(flags)
	e.given = flags.Changed
	e.registerPipeline(flags)
	flags.Var(sizeValue{&e.cacheBytes}, "cache-bytes", "pinned host memory of the cache tier; without a cache, that through which blocks pass (then 256MiB by default)")
	flags.StringArrayVar(&e.dirs, "file-dir", nil, "directory of the file tier; repeat it for several, without it there is none")
	flags.BoolVar(&e.readOnly, "file-read-only", false, "change nothing in the directories of the file tier: serve loads from them, and dump to the cache alone")
	flags.Var(sizeValue{&e.fileBytes}, "file-bytes", "bound of the file tier; 0 is none")
	flags.StringArrayVar(&e.dirBytes, "file-dir-bytes", nil, "bound of one directory by itself, in the order of --file-dir; 0: it is bounded by --file-bytes with the others")
	flags.StringVar(&e.logDir, "log-dir", "", "directory of the log tier, on a local disk, which no other process has open")
	flags.Var(sizeValue{&e.logBytes}, "log-bytes", "bound of the log tier; 0 is none")
	e.registerLower(flags)
	e.rdma.register(flags)
}

// serving is the policy of an engine whose configuration names none.
const serving = "serving"

// registerCopies registers what says how blocks are copied.
func (e *engineFlags) registerCopies(flags *pflag.FlagSet) {
	flags.StringVar(&e.path, "path", "auto", "how to copy: auto, or the name of a path that every batch takes")
	flags.StringVar(&e.policy, "policy", serving, "what paths are chosen for: serving (loads balanced, dumps in the background), or for both throughput, latency, balanced (time against harm to what computes beside), or background (little harm)")
	flags.StringVar(&e.calibration, "calibrate", string(profile.Once), "when a GPU's paths are measured: once (if no profile is stored; it takes 2 s), or never")
	flags.StringVar(&e.verify, "verify", store.VerifyDevice.String(), "who makes and verifies checksums: device (the copy on its way, or else the CPU), always (the CPU too, before and after copies), or fill (the same, but not of what the cache has)")
}

func (e *engineFlags) registerPipeline(flags *pflag.FlagSet) {
	flags.StringVar(&e.pipeline, "pipeline", "", "tiers from fast to slow: cache, cache|file, cache|log, file, log (default: what the directories that are given make of it, below a cache)")
}

func (e *engineFlags) registerLower(flags *pflag.FlagSet) {
	flags.StringVar(&e.fsync, "fsync", "never", "when files are synced: never, or file (each one, before its block counts as durable)")
	flags.StringVar(&e.logFsync, "log-fsync", "interval", "when the log is synced: always (before blocks count as durable), interval (ten times a second), or never")
	flags.BoolVar(&e.streamFiles, "stream-files", false, "read blocks of 64 KiB and more of the tier below by a stream of files, past the page cache")
}

// config returns the engine's configuration for blocks of geometry g, or everything that is wrong with the flags.
func (e *engineFlags) config(g block.Geometry) (kvlane.Config, error) {
	var driver kvlane.Driver
	driver, e.noGPU = chooseDriver(e.device)
	c := kvlane.Config{
		Device: kvlane.DeviceConfig{Driver: driver, Index: e.index},
		Store: kvlane.StoreConfig{
			Pipeline: e.pipeline, CacheBytes: e.cacheBytes, Dirs: e.dirs, FileBytes: e.fileBytes, ReadOnly: e.readOnly,
			LogDir: e.logDir, LogBytes: e.logBytes, StreamFiles: e.streamFiles,
		},
	}
	if tiers, err := store.ParsePipeline(e.pipeline); err == nil && tiers[0] != store.TierCache && (e.given == nil || !e.given("cache-bytes")) {
		c.Store.CacheBytes = 0 // the engine's own
	}
	errs := e.choices(&c)
	c.Store.GDR, c.RDMA = kvlane.GDR(e.rdma.gdr), e.rdma.config()
	if g.Validate() != nil {
		// That has been complained about already; what else is wrong does not depend on it.
		g = smallGeometry
	}
	c.Model = g
	return c, errors.Join(append(errs, c.Validate())...)
}

// choices reads what is still text into c, and returns everything that is wrong with it.
func (e *engineFlags) choices(c *kvlane.Config) []error {
	var errs []error
	check := func(flag string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	var err error
	c.Stream.Path, err = parsePath(e.path)
	check("path", err)
	if e.policy != serving { // which an engine is for by itself
		if c.Stream.Policy.Goal, err = plan.ParseGoal(e.policy); err != nil {
			err = notOffered("policy", "policy", e.policy)
		}
		check("policy", err)
	}
	c.Stream.Calibration, err = profile.ParseCalibration(e.calibration)
	check("calibrate", err)
	c.Store.Verify, err = store.ParseVerify(e.verify)
	check("verify", err)
	c.Store.Fsync, err = file.ParseFsyncPolicy(e.fsync)
	check("fsync", err)
	c.Store.LogFsync, err = log.ParseFsyncPolicy(e.logFsync)
	check("log-fsync", err)
	for _, text := range e.dirBytes {
		var n int64
		check("file-dir-bytes", sizeValue{&n}.Set(text))
		c.Store.DirBytes = append(c.Store.DirBytes, n)
	}
	return errs
}

// parsePath reads what stream.Path.String writes of a path, and "auto" for the stream's own choice.
func parsePath(s string) (stream.Path, error) {
	if s == "auto" {
		return stream.PathNone, nil
	}
	p, err := stream.ParsePath(s)
	if err != nil || p == stream.PathNone {
		return stream.PathNone, notOffered("path", "path", s)
	}
	return p, nil
}

// notOffered says that what has that name is none of those that a shell completes for a flag.
func notOffered(flag, what, name string) error {
	words, _ := offers[flag](nil, nil, "")
	return fmt.Errorf("there is no %s %q: it is one of %s: %w", what, name, strings.Join(words, ", "), errdefs.ErrInvalid)
}

// openEngine opens the engine and tells what it fell back to, each time in a sentence.
func openEngine(ctx context.Context, c kvlane.Config, tell func(string)) (*kvlane.Engine, error) {
	e, err := kvlane.Open(ctx, c)
	if err != nil {
		return nil, asUsage(orNoGPU(c.Device.Driver, err))
	}
	for _, n := range e.Notes() {
		tell(n)
	}
	return e, nil
}

// logNote tells it to the log.
func logNote(note string) { slog.Warn(note) }

// closeEngine closes e although the command's context may have ended: what was dumped is still written.
func closeEngine(ctx context.Context, e *kvlane.Engine) error {
	ctx, cancel := closing(ctx, closeTimeout, interruptGrace)
	defer cancel()
	return e.Close(ctx)
}
