package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/object"
)

// bucketTimeout bounds each request to a bucket and its retries.
const bucketTimeout = 30 * time.Second

// bucketFlags are the flags of settings for the access to a bucket.
var bucketFlags = []string{"object-endpoint", "object-region", "object-ca"}

// bucketAccess is the access of "kvlane store" to buckets.
type bucketAccess struct {
	endpoint, region, caFile string
	age                      time.Duration // of runs that gc removes; 0: none
}

// accessOf returns the access that the flags of a command select.
func accessOf(cmd *cobra.Command) bucketAccess {
	text := func(name string) string { return cmd.Flag(name).Value.String() }
	return bucketAccess{endpoint: text(bucketFlags[0]), region: text(bucketFlags[1]), caFile: text(bucketFlags[2])}
}

// config returns the configuration for a URL.
func (b bucketAccess) config(url string) object.Config {
	return object.Config{URL: url, Endpoint: b.endpoint, Region: b.region, CAFile: b.caFile, Timeout: bucketTimeout}
}

// keeper returns the operations for folders in buckets.
func (b bucketAccess) keeper() keeper {
	return keeper{
		inspect: func(ctx context.Context, url string) (file.Inspection, error) {
			return object.Inspect(ctx, b.config(url))
		},
		list: func(ctx context.Context, url string, yield func(file.Entry) error) error {
			return object.List(ctx, b.config(url), yield)
		},
		verify: func(ctx context.Context, url string, progress func(blocks, bytes int64)) (file.Report, error) {
			return object.Verify(ctx, b.config(url), progress)
		},
		gc: func(ctx context.Context, url string, targetBytes int64, progress func(done, total int64)) (file.Collected, error) {
			return object.GC(ctx, b.config(url), object.Limits{Bytes: targetBytes, Age: b.age}, progress)
		},
		why: func(ctx context.Context, url string, keysOf func(m *file.Marker) ([]block.Key, error)) (file.Answers, error) {
			return object.Why(ctx, b.config(url), keysOf)
		},
		repair: func(context.Context, string, func(blocks, bytes int64)) (r file.Repaired, err error) {
			return r, fmt.Errorf("repair a bucket: the next dump of a damaged block replaces its object: %w", errdefs.ErrInvalid)
		},
		clear: func(context.Context, string, file.Unwanted) (c file.Cleared, err error) {
			return c, fmt.Errorf("clear a bucket, which has no quarantine: give --max-bytes SIZE or --max-age TIME: %w", errdefs.ErrInvalid)
		},
		remove: func(context.Context, string, file.Selection) (r file.Removed, err error) {
			return r, fmt.Errorf("remove blocks of a bucket: use kvlane store gc with --max-bytes SIZE or --max-age TIME: %w", errdefs.ErrInvalid)
		},
		pin: func(context.Context, string, file.Selection, int64) (p file.Pinned, err error) {
			return p, fmt.Errorf("pin blocks of a bucket: only those of directories can be pinned: %w", errdefs.ErrInvalid)
		},
		unpin: func(context.Context, string, file.Selection) (p file.Pinned, err error) {
			return p, fmt.Errorf("unpin blocks of a bucket: only those of directories can be pinned: %w", errdefs.ErrInvalid)
		},
	}
}
