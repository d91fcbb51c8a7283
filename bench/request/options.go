package request

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/interference"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/tier/cache"
)

// Product is a matrix product that can be closed.
type Product interface {
	interference.Product
	Close() error
}

// Work is the kind of requests.
type Work string

// Kinds of requests.
const (
	Load Work = "load"
	Dump Work = "dump"
	Both Work = "both" // as many loads as dumps, started concurrently
)

// Hits is the location of the blocks to load.
type Hits string

// Locations of blocks.
const (
	InCache     Hits = "cache"
	InPageCache Hits = "page-cache" // in files in the page cache
	OnDisk      Hits = "disk"       // in files that are not in the page cache
)

// By is the method by which loads read files.
type By string

// Methods of reading files. Each is measured with the same blocks.
const (
	Direct By = "direct" // with cuFile
	Pinned By = "pinned" // through pinned memory
	Raw    By = "raw"    // by pread to pinned memory, without a store and unverified
)

// promotion returns the load option for the method.
func (b By) promotion() kvlane.Promotion {
	switch b {
	case Direct:
		return kvlane.PromoteNone
	case Pinned:
		return kvlane.PromoteAll
	case Raw:
	}
	return kvlane.PromoteSecond
}

// Form is the form of a load: whole or layer by layer.
type Form string

// The forms of requests.
const (
	Whole  Form = "whole"
	Layers Form = "layers" // all layers are requested together and waited for in order
)

// Options are the options of a run. Zero values have defaults, which are smaller for the simulated
// device.
type Options struct {
	// Engine is the configuration of the engines. The run sets the blocks and the directory, and
	// increases CacheBytes if the largest requests need more. With Device.Sim.Still, nothing is
	// verified.
	Engine kvlane.Config
	// Open opens engines; the run closes them. Default kvlane.Open.
	Open func(context.Context, kvlane.Config) (*kvlane.Engine, error)

	Geometries []string // names of geometries; default 70b-tp8
	Blocks     []int    // blocks of one request; default 1, 8, 64, 128, 1024, 8192
	Requests   []int    // concurrent requests; default 1, 8, 32
	Work       []Work   // default load, dump and both
	Forms      []Form   // default both
	// Hits defaults to InCache, or to InPageCache if Engine's pipeline has no cache. Other values
	// require Dir.
	Hits []Hits
	// Dir is the directory in which the run creates a directory for the file tier, and removes it
	// at the end. If it is set, dumps are durable.
	Dir string
	// Bytes is the maximum total length of concurrent requests. Larger groups are skipped. Default
	// 2 GiB (simulated: 8 MiB).
	Bytes int64
	// LargeBytes is the length of a large copy. Default 256 MiB (simulated: 4 MiB).
	LargeBytes int64
	// Budget is the duration of the run including its setup, counted from Began (zero: the call of
	// Run). Groups that do not fit are skipped and listed in the report. The first measured groups
	// are far apart. Default 2 minutes (simulated: 10 s), and more with a Product.
	Budget time.Duration
	Began  time.Time
	// Quick measures fewer points in 15 s (simulated: 3 s): loads and dumps of 1, 64 and 1024
	// blocks, one request at a time.
	Quick bool
	Seed  uint64

	// OpenProduct opens the product that runs concurrently with BesideRequests requests of
	// BesideBlocks blocks. The run closes it. Optional. The defaults are 2 requests of the largest
	// number of blocks up to 1024.
	OpenProduct                  func(ctx context.Context, dev device.Device) (Product, error)
	BesideBlocks, BesideRequests int
	// number of windows with requests, and of windows without; default 20
	Pairs  int
	Window time.Duration // default 50 ms

	// Progress is called before every group. Notice is called if not all groups will fit. Both are
	// optional.
	Progress func(done, total int, what string)
	Notice   func(text string)

	// For tests: the clock of the budget, and the maximum number of rounds of a group.
	clock  func() time.Time
	rounds int
}

// Limits of Options.
const (
	MaxBlocks   = 1 << 20
	MaxRequests = 4096
	MaxBytes    = 1 << 40
	MaxPairs    = 1 << 16
	MaxWindow   = time.Minute
)

func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

func list[T any](v *[]T, to ...T) {
	if len(*v) == 0 {
		*v = to
	}
}

func (o *Options) simulated() bool { return o.Engine.Device.Driver == kvlane.Sim }

// still reports whether the device is simulated and does not make copies.
func (o *Options) still() bool { return o.simulated() && o.Engine.Device.Sim.Still }

// cached reports whether the pipeline has a cache.
func (o *Options) cached() bool {
	tiers, err := settings.ParsePipeline(o.Engine.Store.Pipeline)
	// without a valid pipeline, assume the default; validate reports the error
	return err != nil || tiers[0] == cache.Name
}

// nearest returns the fastest location of blocks.
func (o *Options) nearest() Hits {
	if o.cached() {
		return InCache
	}
	return InPageCache
}

func (o Options) withDefaults() Options {
	bytes, large, budget, quick := int64(2<<30), int64(256<<20), 2*time.Minute, 15*time.Second
	if o.simulated() {
		bytes, large, budget, quick = 8<<20, 4<<20, 10*time.Second, 3*time.Second
	}
	if o.Quick {
		list(&o.Blocks, 1, 64, 1024)
		list(&o.Requests, 1)
		list(&o.Work, Load, Dump)
		budget = quick
	}
	list(&o.Geometries, geometries[0].Name)
	list(&o.Blocks, 1, 8, 64, 128, 1024, 8192)
	list(&o.Requests, 1, 8, 32)
	list(&o.Work, Load, Dump, Both)
	list(&o.Forms, Whole, Layers)
	list(&o.Hits, o.nearest())
	def(&o.Bytes, bytes)
	def(&o.LargeBytes, large)
	def(&o.BesideRequests, 2)
	def(&o.Pairs, 20)
	def(&o.Window, 50*time.Millisecond)
	def(&o.Budget, budget+o.besideTime())
	def(&o.rounds, maxReps)
	if o.clock == nil {
		o.clock = time.Now
	}
	if o.Open == nil {
		o.Open = kvlane.Open
	}
	if o.BesideBlocks == 0 {
		for _, n := range o.Blocks {
			if n <= max(1024, slices.Min(o.Blocks)) {
				o.BesideBlocks = max(o.BesideBlocks, n)
			}
		}
	}
	return o
}

// Validate reports all errors. It opens nothing.
func (o Options) Validate() error {
	o = o.withDefaults()
	return o.validate()
}

func (o *Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalid)...))
	}
	for _, name := range o.Geometries {
		if _, err := GeometryByName(name); err != nil {
			errs = append(errs, err)
		}
	}
	blocks := o.Blocks
	// the default is one of blocks
	if o.BesideBlocks != 0 && !slices.Contains(blocks, o.BesideBlocks) {
		blocks = append([]int{o.BesideBlocks}, blocks...)
	}
	for _, f := range []struct {
		what    string
		v       []int
		atLeast int
		most    int
	}{
		{"blocks of a request", blocks, 1, MaxBlocks},
		{"requests at a time", append([]int{o.BesideRequests}, o.Requests...), 1, MaxRequests},
		{"pairs of windows", []int{o.Pairs}, 2, MaxPairs},
	} {
		for _, n := range f.v {
			if n < f.atLeast || n > f.most {
				bad("%d %s: must be %d to %d", n, f.what, f.atLeast, f.most)
			}
		}
	}
	oneOf(bad, "work", o.Work, Load, Dump, Both)
	oneOf(bad, "form", o.Forms, Whole, Layers)
	oneOf(bad, "place of blocks", o.Hits, InCache, InPageCache, OnDisk)
	if pipeline := o.Engine.Store.Pipeline; pipeline != "" {
		tiers, err := settings.ParsePipeline(pipeline)
		if err != nil {
			errs = append(errs, err)
		} else if (tiers[len(tiers)-1] != cache.Name) != (o.Dir != "") {
			bad("pipeline %q and directory %q do not go together", pipeline, o.Dir)
		}
	}
	for _, h := range o.Hits {
		if h == InCache && !o.cached() {
			bad("loads read from the cache, but pipeline %q has no cache", o.Engine.Store.Pipeline)
		}
		if h != InCache && o.Dir == "" {
			bad("loads read from files (%s), but no directory is given", h)
		}
	}
	if o.Bytes < 0 || o.Bytes > MaxBytes || o.Engine.Store.CacheBytes < 0 || o.LargeBytes < 4096 || o.LargeBytes > MaxBytes {
		bad("%d bytes of requests and a large copy of %d are not within %d, or the cache of %d bytes is negative",
			o.Bytes, o.LargeBytes, int64(MaxBytes), o.Engine.Store.CacheBytes)
	}
	if o.Budget < 0 || o.Window < 0 || o.Window > MaxWindow {
		bad("a budget of %v or windows of %v are negative, or longer than %v", o.Budget, o.Window, MaxWindow)
	}
	if len(errs) == 0 {
		errs = append(errs, o.fits())
	}
	return errors.Join(errs...)
}

// fits reports geometries for which no group can be measured.
func (o *Options) fits() error {
	for _, name := range o.Geometries {
		g, err := GeometryByName(name)
		if err != nil {
			return err
		}
		if least := g.BlockBytes() * int64(slices.Min(o.Blocks)) * int64(slices.Min(o.Requests)); least > o.Bytes {
			return fmt.Errorf("the smallest requests of %s have %s, more than the limit of %s:  allow more bytes, or fewer blocks: %w",
				name, bench.BytesText(least), bench.BytesText(o.Bytes), errdefs.ErrInvalid)
		}
		if n := g.BlockBytes() * int64(o.BesideBlocks) * int64(o.BesideRequests); o.OpenProduct != nil && n > o.Bytes {
			return fmt.Errorf("the requests of %s during the product have %s, more than the limit of %s:  allow more bytes, or fewer blocks: %w",
				name, bench.BytesText(n), bench.BytesText(o.Bytes), errdefs.ErrInvalid)
		}
	}
	return nil
}

func oneOf[T ~string](bad func(string, ...any), what string, v []T, known ...T) {
	for _, x := range v {
		if !slices.Contains(known, x) {
			bad("unknown %s %q: must be one of %q", what, x, known)
		}
	}
}
