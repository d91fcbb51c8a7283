package store

import (
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/store/dump"
	"github.com/kvlane/kvlane/store/index"
	"github.com/kvlane/kvlane/store/layers"
	"github.com/kvlane/kvlane/store/load"
	"github.com/kvlane/kvlane/store/pages"
	"github.com/kvlane/kvlane/store/pipeline"
	"github.com/kvlane/kvlane/store/read"
	"github.com/kvlane/kvlane/store/stat"
	"github.com/kvlane/kvlane/store/task"
)

// The types of the store's methods, documented in the packages that declare them.
type (
	// Lease pins blocks.
	Lease = index.Lease
	// Hit is the result of Lookup for one key.
	Hit = index.Hit
	// Pages describes a paged KV cache in device memory.
	Pages = pages.Pages
	// Ref pairs a block with its page.
	Ref = pages.Ref
	// LoadOptions are options of Store.Load.
	LoadOptions = load.Options
	// Promotion selects the blocks that a load reads through the cache.
	Promotion = read.Promotion
	// LoadTask is a running load.
	LoadTask = load.Task
	// Progress receives the progress of a load.
	Progress = layers.Progress
	// DumpOptions are options of Store.Dump.
	DumpOptions = dump.Options
	// DumpTask is a running dump.
	DumpTask = dump.Task
	// LeftOut is a durable tier that did not store all blocks of a dump.
	LeftOut = dump.LeftOut
	// BlockError is the error of one block of a task.
	BlockError = task.BlockError
	// Hooks are functions that are called on events of interest to operators.
	Hooks = pipeline.Hooks
	// Tracer makes spans of a store's operations.
	Tracer = pipeline.Tracer
	// Span describes an operation.
	Span = pipeline.Span
	// Direct lets tasks copy blocks between files and device memory without host memory.
	Direct = pipeline.Direct
	// VerifyPolicy selects where checksums are computed and verified.
	VerifyPolicy = pipeline.VerifyPolicy
	// Latency is a histogram of times.
	Latency = stat.Latency
	// PathStats counts the copies of one path in one direction.
	PathStats = stat.PathStats
)

// The values of VerifyPolicy.
const (
	VerifyDevice = pipeline.VerifyDevice
	VerifyAlways = pipeline.VerifyAlways
	VerifyFill   = pipeline.VerifyFill
)

// The values of Promotion.
const (
	PromoteSecond = read.PromoteSecond
	PromoteAll    = read.PromoteAll
	PromoteNone   = read.PromoteNone
)

// LatencyBounds are the upper bounds of the buckets of a Latency.
var LatencyBounds = stat.LatencyBounds

// ParseVerify is the inverse of VerifyPolicy.String.
func ParseVerify(s string) (VerifyPolicy, error) { return pipeline.ParseVerify(s) }

// ValidateLayers returns ErrInvalid unless Config.Layers is valid for these formats.
func ValidateLayers(formats block.Formats, layers [][]int) error {
	_, err := pages.NewMap(formats, layers)
	return err
}
