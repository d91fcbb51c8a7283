package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/tier/cache"
)

// A command that ends waits at most closeTimeout for writes of the store and work of the hardware,
// and at most interruptGrace after an interruption.
const (
	closeTimeout   = 2 * time.Minute
	interruptGrace = 10 * time.Second
)

// closing returns a context for closing resources at the end of a command. It ends after most, or
// at the time grace after the end of ctx. If ctx has already ended, grace begins now.
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

// engineNames are the settings of an engine for which replay has flags.
var engineNames = slices.Concat([]string{
	"device", "device-index", "path", "policy", "calibrate", "verify", "pipeline", "direct", "gdr",
}, tierNames(), settings.RDMANames)

// tierNames are the settings of tiers.
func tierNames() (names []string) {
	for i := range settings.Tiers {
		names = append(names, settings.Tiers[i].Names()...)
	}
	return names
}

// engineFlags select the device, the copy path and the tiers.
type engineFlags struct {
	flags    *pflag.FlagSet
	readOnly bool
	noGPU    error // reason for using the simulated device, if the command line did not select it
}

func (e *engineFlags) register(flags *pflag.FlagSet) {
	e.flags = flags
	registerSettings(flags, engineNames...)
	flags.BoolVar(&e.readOnly, "file-read-only", false, "open the directories of the file tier read-only; dumps go to the cache only")
}

// config returns the engine's configuration for blocks of geometry g. The error lists all errors.
func (e *engineFlags) config(g block.Geometry) (kvlane.Config, error) {
	c := kvlane.Config{Model: g, Store: kvlane.StoreConfig{ReadOnly: e.readOnly}}
	err := applySettings(&c, e.flags, engineNames...)
	c.Device.Driver, e.noGPU = chooseDriver(e.flags.Lookup("device").Value.String())
	if tiers, err := settings.ParsePipeline(c.Store.Pipeline); err == nil && tiers[0] != cache.Name && !e.flags.Changed("cache-bytes") {
		c.Store.CacheBytes = 0 // the engine's default
	}
	// the caller reports an invalid geometry; other errors do not depend on it
	if g.Validate() != nil {
		c.Model = smallGeometry
	}
	return c, errors.Join(err, c.Validate())
}

// openEngine opens the engine and passes a sentence about each fallback to report.
func openEngine(ctx context.Context, c kvlane.Config, report func(string)) (*kvlane.Engine, error) {
	e, err := kvlane.Open(ctx, c)
	if err != nil {
		return nil, asUsage(orNoGPU(c.Device.Driver, err))
	}
	for _, n := range e.Notes() {
		report(n)
	}
	return e, nil
}

// logNote logs a note as a warning.
func logNote(note string) { slog.Warn(note) }

// closeEngine closes e. It waits until the store has written dumped blocks, also if ctx has ended.
func closeEngine(ctx context.Context, e *kvlane.Engine) error {
	ctx, cancel := closing(ctx, closeTimeout, interruptGrace)
	defer cancel()
	return e.Close(ctx)
}
