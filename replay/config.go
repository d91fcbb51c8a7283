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

// Config is the configuration of a replay. Device, Store, Geometry, Identity and Trace are
// required.
type Config struct {
	Device   device.Device
	Store    *store.Store
	Geometry block.Geometry
	Identity block.Identity // identity of the store's blocks
	Trace    string         // file name
	// Limit is the maximum number of requests to replay. Zero: all.
	Limit int
	// Pages is the number of pages of the KV cache, at most MaxPages. Zero: enough for Concurrency
	// requests of the length of the longest.
	Pages int
	// Concurrency is the maximum number of concurrent requests, at most MaxConcurrency. Concurrency
	// times the blocks of the longest request must not exceed MaxPages. Default 1.
	Concurrency int
	// Layerwise loads and dumps one layer at a time, as engines do that overlap copies with
	// computing.
	Layerwise bool
	// Seed determines the order in which pages are used. It does not affect block contents.
	Seed uint64
	// Backlog is the maximum number of queued dumps that are not yet durable, at most MaxBacklog.
	// Default 64.
	Backlog int
	// Timeout is the maximum duration of every wait, except the wait until a request is due.
	// Default one minute.
	Timeout time.Duration
	// Speed replays the trace's timestamps at Speed times their original rate. A request starts no
	// earlier than its timestamp relative to the first one, divided by Speed. Zero: requests start
	// without delay.
	Speed float64
	// Clock is used for delays if Speed is set. Default: the system clock.
	Clock clockwork.Clock
	// Summary is the result of Scan for this trace and Limit. It must stay open until Run returns.
	// Nil: Run scans the trace itself.
	Summary *Summary
	// Memory registers the memory of the KV cache before it is used, and unregisters it before it
	// is freed. Stores whose streams need registered memory require it. Optional.
	Memory Memory
	// Progress is called after each request, by several goroutines concurrently. Optional.
	Progress func(Step)
}

// Limits of a Config.
const (
	MaxPages       = 1 << 26 // 1 TiB in pages of 16 KiB
	MaxConcurrency = 4096
	MaxBacklog     = 1 << 16
)

// Memory registers device memory for loads and dumps. *kvlane.Engine implements it.
type Memory interface {
	// Register registers all regions or none. If it fails, the caller must call Unregister, because
	// some registrations may remain.
	Register(regions ...*mem.Region) error
	// Unregister unregisters the regions. The caller must not free them unless it returns nil.
	Unregister(ctx context.Context, regions ...*mem.Region) error
}

// Step is the result of one request.
type Step struct {
	Total         int   // requests of the whole replay
	Accesses      int64 // blocks of the request
	Hits          int64 // blocks found by prefix and loaded
	VerifiedBytes int64
	WrongBytes    int64
}

// Validate returns all errors of the configuration. It does not read the trace.
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
			bad("%s %d is too large: must be at most %d", n.name, n.v, n.most)
		}
	}
	if c.Timeout < 0 {
		bad("timeout %v is negative", c.Timeout)
	}
	if math.IsNaN(c.Speed) || math.IsInf(c.Speed, 0) || c.Speed < 0 {
		bad("speed %v: must be a number, at least 0", c.Speed)
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

// Fits returns an error if the KV cache is too small for the trace. The error is a *TraceError if a
// request has more blocks than Pages. It wraps ErrInvalid if Concurrency requests of the longest
// length have more blocks than MaxPages. Run also calls it.
func (c *Config) Fits(s *Summary) error {
	n := max(c.Concurrency, 1)
	switch {
	case c.Pages > 0 && c.Pages < s.MaxBlocks:
		return &TraceError{
			File: c.Trace, Line: s.LongestLine, Field: "hash_ids",
			Problem: fmt.Sprintf("has %d blocks, more than the KV cache's %d pages: give %d pages, or 0 for the number that the trace needs", s.MaxBlocks, c.Pages, s.MaxBlocks),
		}
	case n > MaxPages || s.MaxBlocks > MaxPages/n:
		return fmt.Errorf("%d concurrent requests of up to %d blocks need more than %d pages: use a lower concurrency, or a limit that excludes the longest request: %w",
			n, s.MaxBlocks, MaxPages, errdefs.ErrInvalid)
	}
	return nil
}

// pages returns the number of pages of the KV cache, for a trace that fits.
func (c *Config) pages(s *Summary) int {
	if c.Pages > 0 {
		return c.Pages
	}
	return max(s.MaxBlocks*c.Concurrency, 1)
}
