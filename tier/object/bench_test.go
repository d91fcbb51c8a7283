package object_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdkconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/s3test"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/object"
	"github.com/kvlane/kvlane/tier/tiertest"
)

// loaders is the number of concurrent loads of BenchmarkLoad.
const loaders = 8

func benchFormat(b *testing.B, bytes int64) block.Format {
	b.Helper()
	shards := make([]int64, 32)
	for i := range shards {
		shards[i] = bytes/32 - 64
	}
	l, err := block.NewLayout(shards)
	must(b, err)
	return block.Format{Layout: l, Identity: block.Digest{7}}
}

// client returns a client of the SDK for a server, with the SDK's defaults.
func client(b *testing.B, s *s3test.Server) *s3.Client {
	b.Helper()
	c, err := sdkconfig.LoadDefaultConfig(b.Context(), sdkconfig.WithRegion("us-east-1"))
	must(b, err)
	return s3.NewFromConfig(c, func(o *s3.Options) { o.BaseEndpoint, o.UsePathStyle = aws.String(s.URL()), true })
}

// BenchmarkLoad compares verified loads of blocks of 2 MiB with downloads of the same objects by
// the SDK's transfer manager into memory, in turns. It reports medians.
func BenchmarkLoad(b *testing.B) {
	s3test.Setenv(b)
	s := s3test.Start(b, "versitygw")
	f := benchFormat(b, 2<<20)
	const blocks = 32
	c := config(s.URL(), "prefix", f)
	tr := open(b, c)
	names := make([]string, blocks)
	for i := range blocks {
		must(b, put(b, tr, f, i, 0))
		name, err := object.Find(b.Context(), c, tiertest.Key(i))
		must(b, err)
		names[i] = name
	}
	manager := transfermanager.New(client(b, s))
	dsts := make([]mem.Extent, loaders)
	for i := range dsts {
		dsts[i] = tiertest.Buffer(b, f.Layout.ImageBytes())
	}
	// all loads all blocks and returns the duration.
	all := func(load func(worker, i int) error) time.Duration {
		start := time.Now()
		var wg sync.WaitGroup
		for w := range loaders {
			wg.Go(func() {
				for i := w; i < blocks; i += loaders {
					if err := load(w, i); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	var ours, theirs []time.Duration
	var ratios []float64
	for b.Loop() {
		o := all(func(w, i int) error { return tr.Get(b.Context(), tiertest.Key(i), dsts[w]) })
		m := all(func(w, i int) error {
			_, err := manager.DownloadObject(b.Context(), &transfermanager.DownloadObjectInput{
				Bucket: aws.String(s3test.Bucket), Key: &names[i], WriterAt: place(dsts[w].Bytes()),
			})
			return err
		})
		ours, theirs, ratios = append(ours, o), append(theirs, m), append(ratios, m.Seconds()/o.Seconds())
	}
	rate := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(blocks*f.Layout.ImageBytes()) / 1e6 / all[len(all)/2].Seconds()
	}
	slices.Sort(ratios)
	b.ReportMetric(rate(ours), "kvlane-MB/s")
	b.ReportMetric(rate(theirs), "sdk-MB/s")
	b.ReportMetric(ratios[len(ratios)/2], "of-sdk")
}

// place writes parts of an object to memory.
type place []byte

func (p place) WriteAt(b []byte, off int64) (int, error) { return copy(p[off:], b), nil }

// BenchmarkDecode compares dumps of the 64 blocks of a run, one after another, with those of an
// object for the whole run, which each dump writes again.
func BenchmarkDecode(b *testing.B) {
	s3test.Setenv(b)
	s := s3test.Start(b, "versitygw")
	f := benchFormat(b, 1<<20)
	api := client(b, s)
	image := tiertest.Buffer(b, f.Layout.ImageBytes())
	b.Run("blocks", func(b *testing.B) {
		n := 0
		for b.Loop() {
			tr := open(b, config(s.URL(), fmt.Sprint("blocks/", n), f))
			n++
			for i := range tier.RunBlocks {
				tiertest.Seal(b, f, image.Bytes(), tiertest.Key(i), 0)
				must(b, tr.Put(b.Context(), tiertest.Key(i), image))
			}
		}
	})
	b.Run("runs", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n++
			var run []byte
			for i := range tier.RunBlocks {
				tiertest.Seal(b, f, image.Bytes(), tiertest.Key(i), 0)
				run = append(run, image.Bytes()...)
				_, err := api.PutObject(context.Background(), &s3.PutObjectInput{
					Bucket: aws.String(s3test.Bucket), Key: aws.String(fmt.Sprint("runs/", n)), Body: bytes.NewReader(run),
				})
				must(b, err)
			}
		}
	})
}
