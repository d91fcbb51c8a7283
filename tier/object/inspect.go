package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Types of reports about a folder.
type (
	// Inspection describes the contents of a folder. Temporary are uploads in parts that have not
	// ended.
	Inspection = blockdir.Inspection
	// Entry is a block in a folder.
	Entry = blockdir.Entry
	// Collected is the result of GC. Swept are uploads in parts that were aborted.
	Collected = blockdir.Collected
	// Report is the result of Verify.
	Report = blockdir.Report
)

// verifiers is the number of blocks that Verify reads at a time.
const verifiers = 8

// folder is a folder of blocks that is opened for inspection.
type folder struct {
	*bucket
	name    string // ends in a slash
	marker  blockdir.Marker
	formats block.Formats
	part    int64
}

// Folders returns the URLs of the folders of blocks below c.URL, one for each store's formats. c
// needs no formats. It returns ErrNotFound if there is none.
func Folders(ctx context.Context, c Config) (urls []string, err error) {
	b, err := newBucket(ctx, &c)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", c.URL, err)
	}
	defer b.close()
	if isFolder(b.prefix) {
		return []string{Scheme + b.name + "/" + strings.TrimSuffix(b.prefix, "/")}, nil
	}
	in := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: aws.String(b.prefix + versionFolder), Delimiter: aws.String("/")}
	for {
		var out *s3.ListObjectsV2Output
		within, cancel := b.begin(ctx)
		err := b.do(within, &b.reads, func(ctx context.Context) (err error) {
			out, err = b.api.ListObjectsV2(ctx, in)
			return err
		})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", c.URL, err)
		}
		for _, p := range out.CommonPrefixes {
			if name := aws.ToString(p.Prefix); isFolder(name) {
				urls = append(urls, Scheme+b.name+"/"+strings.TrimSuffix(name, "/"))
			}
		}
		if !aws.ToBool(out.IsTruncated) || out.NextContinuationToken == nil {
			break
		}
		in.ContinuationToken = out.NextContinuationToken
	}
	if len(urls) == 0 {
		return nil, fmt.Errorf("list %s: no blocks of kvlane are there: %w", c.URL, errdefs.ErrNotFound)
	}
	return urls, nil
}

// isFolder reports whether a prefix is that of a folder of blocks.
func isFolder(prefix string) bool {
	at := strings.LastIndex(strings.TrimSuffix(prefix, "/"), versionFolder)
	if at < 0 || at > 0 && prefix[at-1] != '/' {
		return false
	}
	_, err := block.ParseDigest(strings.TrimSuffix(prefix[at+len(versionFolder):], "/"))
	return err == nil
}

// openFolder opens the folder of c.URL. The caller closes it.
func openFolder(ctx context.Context, c Config) (*folder, error) {
	b, err := newBucket(ctx, &c)
	if err != nil {
		return nil, err
	}
	f := &folder{bucket: b, name: b.prefix, part: c.PartBytes}
	within, cancel := b.begin(ctx)
	defer cancel()
	if f.marker, err = b.marker(within, f.name); err != nil {
		b.close()
		return nil, err
	}
	f.formats = f.marker.Formats()
	return f, nil
}

// entry returns the block of an object, or false if it is none. Group is -1 for a key of no group.
func (f *folder) entry(o *types.Object) (e Entry, ok bool) {
	if e.Key, ok = keyOf(f.name, aws.ToString(o.Key)); !ok {
		return e, false
	}
	e.Bytes, e.Modified, e.Group = aws.ToInt64(o.Size), aws.ToTime(o.LastModified), f.formats.Group(e.Key)
	if e.Group >= 0 {
		e.Shards = f.formats[e.Group].Layout.Shards()
	}
	return e, true
}

// List calls yield for each block of a folder, whose URL is c.URL, in the order of their names. It
// ends with the error of yield.
func List(ctx context.Context, c Config, yield func(Entry) error) error {
	f, err := openFolder(ctx, c)
	if err != nil {
		return fmt.Errorf("list %s: %w", c.URL, err)
	}
	defer f.close()
	var yielded error
	err = f.walk(ctx, f.name, func(o *types.Object) error {
		if e, ok := f.entry(o); ok {
			yielded = yield(e)
		}
		return yielded
	})
	if err != nil && yielded == nil {
		return fmt.Errorf("list %s: %w", c.URL, err)
	}
	return err
}

// Inspect counts the blocks of a folder, whose URL is c.URL.
func Inspect(ctx context.Context, c Config) (in Inspection, err error) {
	f, err := openFolder(ctx, c)
	if err != nil {
		return in, fmt.Errorf("inspect %s: %w", c.URL, err)
	}
	defer f.close()
	in.Marker, in.ByGroup = f.marker, make([]blockdir.Totals, len(f.formats))
	err = f.walk(ctx, f.name, func(o *types.Object) error {
		if e, ok := f.entry(o); ok {
			in.Blocks++
			in.Bytes += e.Bytes
			if e.Group >= 0 {
				in.ByGroup[e.Group].Blocks++
				in.ByGroup[e.Group].Bytes += e.Bytes
			}
		}
		return nil
	})
	if err == nil {
		err = f.uploads(ctx, func(*types.MultipartUpload) error { in.Temporary++; return nil })
	}
	if err != nil {
		return in, fmt.Errorf("inspect %s: %w", c.URL, err)
	}
	return in, nil
}

// uploads calls yield for each upload in parts that has not ended.
func (f *folder) uploads(ctx context.Context, yield func(*types.MultipartUpload) error) error {
	in := &s3.ListMultipartUploadsInput{Bucket: &f.bucket.name, Prefix: &f.name}
	for {
		var out *s3.ListMultipartUploadsOutput
		within, cancel := f.begin(ctx)
		err := f.do(within, &f.reads, func(ctx context.Context) (err error) {
			out, err = f.api.ListMultipartUploads(ctx, in)
			return err
		})
		cancel()
		if err != nil {
			return err
		}
		for i := range out.Uploads {
			if err := yield(&out.Uploads[i]); err != nil {
				return err
			}
		}
		if !aws.ToBool(out.IsTruncated) {
			return nil
		}
		in.KeyMarker, in.UploadIdMarker = out.NextKeyMarker, out.NextUploadIdMarker
	}
}

// Verify reads and checks every block of a folder, whose URL is c.URL. It calls progress after each
// block, if that is not nil. It changes nothing.
func Verify(ctx context.Context, c Config, progress func(blocks, bytes int64)) (r Report, err error) {
	f, err := openFolder(ctx, c)
	if err != nil {
		return r, fmt.Errorf("verify %s: %w", c.URL, err)
	}
	defer f.close()
	r.Marker, r.Sums = f.marker, make(map[block.SumAlgo]int64)
	var mu sync.Mutex // of r
	root := Scheme + f.bucket.name
	next := make(chan types.Object)
	var wg sync.WaitGroup
	for range verifiers {
		wg.Go(func() {
			image := make([]byte, f.formats.MaxImageBytes())
			for o := range next {
				problem, algo, detail := f.check(ctx, &o, image)
				key, _ := keyOf(f.name, *o.Key)
				mu.Lock()
				if problem != "" {
					r.Add(root, key, *o.Key, problem, detail)
				} else {
					r.Sums[algo]++
				}
				if r.Blocks++; progress != nil {
					progress(r.Blocks, r.Bytes)
				}
				r.Bytes += aws.ToInt64(o.Size)
				mu.Unlock()
			}
		})
	}
	err = f.walk(ctx, f.name, func(o *types.Object) error {
		if _, ok := f.entry(o); ok {
			next <- *o
		} else if *o.Key != markerName(f.name) {
			mu.Lock()
			defer mu.Unlock()
			r.Add(root, block.Key{}, *o.Key, blockdir.Foreign, "no block of kvlane has such a name")
		}
		return nil
	})
	close(next)
	wg.Wait()
	slices.SortFunc(r.Findings, func(a, b blockdir.Finding) int { return strings.Compare(a.Path, b.Path) })
	if err = errors.Join(err, context.Cause(ctx)); err != nil {
		return r, fmt.Errorf("verify %s: %w", c.URL, err)
	}
	return r, nil
}

// check reads and verifies a block. It returns a problem with its details, or the checksum algorithm
// of an intact block. image is memory for the longest image.
func (f *folder) check(ctx context.Context, o *types.Object, image []byte) (problem blockdir.Problem, algo block.SumAlgo, detail string) {
	e, _ := f.entry(o)
	if e.Group < 0 {
		return blockdir.Foreign, 0, "its key belongs to no page group"
	}
	format := f.formats[e.Group]
	image = image[:format.Layout.ImageBytes()]
	within, cancel := f.begin(ctx)
	defer cancel()
	err := f.do(within, &f.reads, func(ctx context.Context) error {
		_, err := f.readObject(ctx, f.part, *o.Key, image, func(version) error { return nil })
		return err
	})
	if err == nil {
		if err = format.Verify(image, e.Key); err == nil {
			h, err := block.DecodeHeader(image)
			if err == nil {
				return "", h.SumAlgo, ""
			}
		}
		return blockdir.Damaged, 0, err.Error()
	}
	if errors.Is(err, errdefs.ErrCorrupt) {
		return blockdir.Damaged, 0, err.Error()
	}
	return blockdir.Unjudged, 0, err.Error()
}

// Limits are the bounds of GC.
type Limits struct {
	Bytes int64         // of all blocks; negative: no bound
	Age   time.Duration // of runs, since their last write; zero: no bound
}

// maxUploadAge is the age at which GC aborts uploads in parts.
const maxUploadAge = 24 * time.Hour

// GC removes the blocks of runs of a folder, whose URL is c.URL: first of runs that are older than
// the age, and then of the oldest runs until the blocks have at most the bytes. Whole runs are
// removed, because a run without its beginning is useless. Blocks that are removed while a store
// leases them are misses. progress may be nil. It is called after each run with the bytes that were
// removed, and with those to remove, or 0 without a bound of bytes.
func GC(ctx context.Context, c Config, limits Limits, progress func(done, total int64)) (collected Collected, err error) {
	f, err := openFolder(ctx, c)
	if err != nil {
		return collected, fmt.Errorf("collect %s: %w", c.URL, err)
	}
	defer f.close()
	type run struct {
		names    []string
		bytes    int64
		modified time.Time
	}
	runs := make(map[string]*run)
	err = f.walk(ctx, f.name, func(o *types.Object) error {
		e, ok := f.entry(o)
		if !ok {
			return nil
		}
		anchor, _, _ := strings.Cut(strings.TrimPrefix(*o.Key, f.name), "/")
		r := runs[anchor]
		if r == nil {
			r = new(run)
			runs[anchor] = r
		}
		r.names, r.bytes = append(r.names, *o.Key), r.bytes+e.Bytes
		if e.Modified.After(r.modified) {
			r.modified = e.Modified
		}
		collected.Before += e.Bytes
		return nil
	})
	if err != nil {
		return collected, fmt.Errorf("collect %s: %w", c.URL, err)
	}
	collected.After = collected.Before
	oldest := make([]*run, 0, len(runs))
	for _, r := range runs {
		oldest = append(oldest, r)
	}
	slices.SortFunc(oldest, func(a, b *run) int { return a.modified.Compare(b.modified) })
	var left []error
	for _, r := range oldest {
		over := limits.Bytes >= 0 && collected.After > limits.Bytes
		if aged := limits.Age > 0 && time.Since(r.modified) > limits.Age; !over && !aged {
			break
		}
		if err := f.remove(ctx, r.names); err != nil {
			left = append(left, err)
			continue
		}
		collected.Removed += int64(len(r.names))
		collected.After -= r.bytes
		if progress != nil {
			total := int64(0)
			if limits.Bytes >= 0 {
				total = collected.Before - limits.Bytes
			}
			progress(collected.Before-collected.After, total)
		}
	}
	left = append(left, f.uploads(ctx, func(u *types.MultipartUpload) error {
		if time.Since(aws.ToTime(u.Initiated)) < maxUploadAge {
			return nil
		}
		err := f.abort(ctx, u)
		if err == nil {
			collected.Swept++
		}
		return err
	}))
	collected.Left = errors.Join(left...)
	return collected, nil
}

func (f *folder) abort(ctx context.Context, u *types.MultipartUpload) error {
	within, cancel := f.begin(ctx)
	defer cancel()
	return f.do(within, &f.writes, func(ctx context.Context) error {
		_, err := f.api.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: &f.bucket.name, Key: u.Key, UploadId: u.UploadId})
		return err
	})
}

// remove removes objects, up to 1,000 in a request.
func (f *folder) remove(ctx context.Context, names []string) error {
	for batch := range slices.Chunk(names, 1000) {
		ids := make([]types.ObjectIdentifier, len(batch))
		for i := range batch {
			ids[i].Key = &batch[i]
		}
		within, cancel := f.begin(ctx)
		err := f.do(within, &f.writes, func(ctx context.Context) error {
			out, err := f.api.DeleteObjects(ctx, &s3.DeleteObjectsInput{
				Bucket: &f.bucket.name, Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(true)},
			})
			if err == nil && len(out.Errors) > 0 {
				err = fmt.Errorf("%d objects stay, %s: %s", len(out.Errors), aws.ToString(out.Errors[0].Key), aws.ToString(out.Errors[0].Message))
			}
			return err
		})
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}
