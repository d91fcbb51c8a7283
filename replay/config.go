package replay

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jonboulle/clockwork"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/store"
)

// Config describes a replay. Device, Store, Geometry, Identity and Trace are required.
type Config struct {
	Device   device.Device
	Store    *store.Store
	Geometry block.Geometry
	Identity block.Identity // of the store's blocks
	Trace    string         // file name
	// Limit replays the first requests only; zero replays all.
	Limit int
	// Pages is the number of pages of the KV cache, MaxPages at most. Zero gives room for Concurrency requests of the trace's
	// longest.
	Pages int
	// Concurrency is the number of requests at a time, MaxConcurrency at most; their blocks are together no more than MaxPages.
	// Default 1.
	Concurrency int
	// Layerwise loads and dumps layer by layer, as an engine does that overlaps them with its computing.
	Layerwise bool
	// Seed chooses which pages are used first. It has no say over the content of blocks.
	Seed uint64
	// Backlog is how many dumps may be not yet durable while the replay goes on, MaxBacklog at most. Default 64.
	Backlog int
	// Timeout bounds every single wait but that for a request's time. Default one minute.
	Timeout time.Duration
	// Speed keeps the trace's times, so many times as fast: no request starts before its timestamp, counted from that of the first, divided
	// by Speed. Zero goes on as fast as it can.
	Speed float64
	// Clock is what Speed goes by. Default the real one.
	Clock clockwork.Clock
	// Summary is what Scan found in the trace with this Limit; it stays open until Run returns. Nil has Run scan it.
	Summary *Summary
	// Memory is told of the KV cache's memory before a load or dump names it, and before it is freed: for stores whose
	// streams reach only what is registered. Nil: nobody is told.
	Memory Memory
	// Progress is told of each request that is done, from several goroutines at once. Nil tells nobody.
	Progress func(Step)
}

// Bounds of a Config.
const (
	MaxPages       = 1 << 26 // 1 TiB in pages of 16 KiB
	MaxConcurrency = 4096
	MaxBacklog     = 1 << 16
)

// Memory registers device memory for loads and dumps. *kvlane.Engine does.
type Memory interface {
	// Register registers all regions or none. Where it fails Unregister takes back what could not be undone.
	Register(regions ...*mem.Region) error
	// Unregister takes that back. The regions must not be freed unless it returns nil.
	Unregister(ctx context.Context, regions ...*mem.Region) error
}

// Step is one request done.
type Step struct {
	Total         int   // requests of the whole replay
	Accesses      int64 // blocks asked for
	Hits          int64 // blocks found by prefix and loaded
	VerifiedBytes int64
	WrongBytes    int64
}

// Validate reports everything wrong with the configuration at once. It does not look at the trace.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	if c.Device == nil || c.Store == nil {
		bad("a replay needs a device and a store")
	}
	if c.Trace == "" {
		bad("no trace is given")
	}
	if err := c.Geometry.Validate(); err != nil {
		errs = append(errs, err)
	}
	for _, n := range []struct {
		name    string
		v, most int
	}{
		{"limit", c.Limit, math.MaxInt},
		{"pages", c.Pages, MaxPages},
		{"concurrency", c.Concurrency, MaxConcurrency},
		{"backlog", c.Backlog, MaxBacklog},
	} {
		switch {
		case n.v < 0:
			bad("%s %d is negative", n.name, n.v)
		case n.v > n.most:
			bad("%s %d is too large: it is %d at most", n.name, n.v, n.most)
		}
	}
	if c.Timeout < 0 {
		bad("timeout %v is negative", c.Timeout)
	}
	if math.IsNaN(c.Speed) || math.IsInf(c.Speed, 0) || c.Speed < 0 {
		bad("speed %v is no number from 0 on", c.Speed)
	}
	return errors.Join(errs...)
}

func (c *Config) setDefaults() {
	if c.Concurrency == 0 {
		c.Concurrency = 1
	}
	if c.Backlog == 0 {
		c.Backlog = 64
	}
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	if c.Clock == nil {
		c.Clock = clockwork.NewRealClock()
	}
}

// Fits reports whether the KV cache that c asks for has room for the trace: a *TraceError where a request is longer than Pages, or
// ErrInvalid where Concurrency of the longest would take more than MaxPages. Run asks it too.
func (c *Config) Fits(s *Summary) error {
	n := max(c.Concurrency, 1)
	switch {
	case c.Pages > 0 && c.Pages < s.MaxBlocks:
		return &TraceError{
			File: c.Trace, Line: s.LongestLine, Field: "hash_ids",
			Problem: fmt.Sprintf("has %d blocks, more than the KV cache's %d pages: it needs %d, or 0 for as many as the trace takes", s.MaxBlocks, c.Pages, s.MaxBlocks),
		}
	case n > MaxPages || s.MaxBlocks > MaxPages/n:
		return fmt.Errorf("%d requests at a time of up to %d blocks are more than %d pages: ask for fewer at a time, or for a limit that leaves the longest out: %w",
			n, s.MaxBlocks, MaxPages, errdefs.ErrInvalid)
	}
	return nil
}

// pages returns how many pages the KV cache has for a trace that fits.
func (c *Config) pages(s *Summary) int {
	if c.Pages > 0 {
		return c.Pages
	}
	return max(s.MaxBlocks*c.Concurrency, 1)
}
