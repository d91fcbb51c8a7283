package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/bench"
	"github.com/kvlane/kvlane/bench/matmul"
	"github.com/kvlane/kvlane/bench/request"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/sim"
)

// storeBench are the flags of a benchmark of requests.
type storeBench struct {
	device            string
	run               request.Options
	still             bool
	work, forms, hits []string
	withProduct       bool
	productRows       int
	cublaslt          string
	json              bool
	out               string
	comparing         comparing
}

func newBenchStoreCommand() *cobra.Command {
	var f storeBench
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Measure how long requests to the store take: loads and dumps of KV cache",
		Long: `store measures the time of a request for KV cache, as an inference engine makes it: a load from the call of LeasePrefix until every byte is
verified in the GPU's pages, a dump from the call of Dump until the pages may be reused, and until the blocks are durable. Requests are
measured whole and layer by layer, one or many at a time, as loads, dumps, and both at once.

References of the same run are one large copy (C) and the same pages in one batch of a stream without the store (raw). All are measured in
interleaved rounds. All bytes are compared; wrong bytes fail the run.

A run takes two minutes on a GPU, 15 seconds with --quick, and at most about --budget including its set-up. Points that do not fit are left
out and named. Ctrl-C ends a run early and prints the results so far. All options of the engine have their defaults unless given.

Geometries:
` + geometryTexts() + `

Without --file-dir the store is a cache in host memory, and a block is durable when lookups find it. With it there is also a file tier, in a
directory of its own that is removed at the end. --hits page-cache and --hits disk then measure loads from files that are in the page cache,
or that were dropped from it. With --direct loads of files are measured from the same files by cuFile (direct), through pinned memory
(pinned), and by pread without a store (raw).

--beside-matmul measures how much requests slow down a matrix product that runs at the same time.

Of the figures of the simulated device only ratios have a meaning. With --still it copies nothing; CPU time and allocations are then those of
the host itself.`,
		Example: `  kvlane bench store
  kvlane bench store --quick --out run.json
  kvlane bench store --geometry 8b,mla --blocks 16,128 --requests 1 --compare run.json
  kvlane bench store --device sim --still --quick --requests 1`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.execute(cmd) },
	}
	f.register(cmd.Flags())
	return cmd
}

func geometryTexts() string {
	var texts []string
	for _, g := range request.Geometries() {
		texts = append(texts, fmt.Sprintf("  %-15s %s", g.Name, g.About))
	}
	return strings.Join(texts, "\n")
}

func (f *storeBench) register(fl *pflag.FlagSet) {
	fl.SortFlags = false
	registerDevice(fl, &f.device)
	registerSettings(fl, "device-index")
	fl.BoolVar(&f.still, "still", false, "let the simulated device complete copies without copying")
	fl.StringSliceVar(&f.run.Geometries, "geometry", nil, "models with their block layouts, comma-separated (default 70b-tp8)")
	fl.IntSliceVar(&f.run.Blocks, "blocks", nil, "blocks per request, comma-separated (default 1,8,64,128,1024,8192)")
	fl.IntSliceVar(&f.run.Requests, "requests", nil, "concurrent requests, comma-separated (default 1,8,32)")
	fl.StringSliceVar(&f.work, "work", nil, "kinds of requests: load, dump, both at once (default all)")
	fl.StringSliceVar(&f.forms, "forms", nil, "how requests wait: whole (for all layers), layers (for one layer at a time) (default both)")
	fl.StringSliceVar(&f.hits, "hits", nil, "source of loads: cache, page-cache, disk (default cache, or page-cache if the pipeline has no cache)")
	fl.StringVar(&f.run.Dir, "file-dir", "", "folder in which a directory for the file tier, or the tier of --pipeline, is created (default: no such tier)")
	registerSettings(fl, "pipeline")
	fl.Var(sizeValue{&f.run.Bytes}, "bytes", "most bytes of all concurrent requests; larger points are omitted; 0 is 2GiB, or 8MiB simulated")
	fl.Var(sizeValue{&f.run.Engine.Store.CacheBytes}, "cache-bytes", "bytes of pinned host memory for the cache; 0 is the smallest size that the requests need")
	fl.Var(sizeValue{&f.run.LargeBytes}, "large", "bytes of the one large copy; 0 is 256MiB, or 4MiB simulated")
	fl.BoolVar(&f.run.Quick, "quick", false, "measure loads and dumps of 1, 64 and 1024 blocks, one at a time, in 15 s")
	fl.DurationVar(&f.run.Budget, "budget", 0, "duration of the run, set-up included; points that do not fit are omitted; 0 is 2m, 15s with --quick, or 10s simulated, and more with --beside-matmul")
	fl.Uint64Var(&f.run.Seed, "seed", 1, "seed of the random choice of pages")

	registerSettings(fl, storeNames...)

	fl.BoolVar(&f.withProduct, "beside-matmul", false, "also measure requests during a matrix product")
	fl.IntVar(&f.productRows, "product-rows", matmul.MaxRows, fmt.Sprintf("rows and columns of the product's matrices, at least %d; smaller products, as in models, are slowed down more", matmul.MinRows))
	fl.IntVar(&f.run.BesideBlocks, "beside-blocks", 0, "blocks per request during the product; 0 is the largest of --blocks up to 1024")
	fl.IntVar(&f.run.BesideRequests, "beside-requests", 2, "concurrent requests during the product")
	fl.IntVar(&f.run.Pairs, "pairs", 20, "number of compared pairs of time windows, with and without requests")
	fl.DurationVar(&f.run.Window, "window", 50*time.Millisecond, "duration of such a window")
	fl.StringVar(&f.cublaslt, "cublaslt", "", "path of libcublasLt.so or its folder (default: the loader's search path)")

	fl.BoolVar(&f.json, "json", false, "print one JSON object")
	fl.StringVar(&f.out, "out", "", "also write the JSON object to this file")
	f.comparing.register(fl)
}

func (f *storeBench) execute(cmd *cobra.Command) error {
	f.run.Began = time.Now()
	if err := f.parse(cmd.Flags()); err != nil {
		return err
	}
	if err := checkOutput(f.out); err != nil {
		return err
	}
	earlier, err := readEarlier(cmd.Context(), "--compare", f.comparing.with, request.Read)
	if err != nil {
		return err
	}
	progress, finish := drawProgress(cmd)
	f.run.Progress = progress
	f.run.Notice = noticeOn(cmd)
	r, err := request.Run(cmd.Context(), f.run)
	finish()
	return printMeasured(cmd.Context(), r, asUsage(err), func() error {
		this := releaseOf(debug.ReadBuildInfo())
		r.Machine.Command, r.Version, r.Setup.Engine = commandLine(), this.tag(), engineOptions(cmd.Flags())
		if r.Incomplete != "" {
			earlier = nil
		}
		return f.print(cmd, r, earlier)
	})
}

// parse parses flags that are still text, and returns every error.
func (f *storeBench) parse(flags *pflag.FlagSet) error {
	o := &f.run
	c := &o.Engine
	c.Device = kvlane.DeviceConfig{Driver: kvlane.Driver(f.device), Sim: sim.Options{Still: f.still}}
	errs := []error{applySettings(c, flags, append([]string{"device-index", "pipeline"}, storeNames...)...)}
	if d := c.Device.Driver; d != kvlane.CUDA && d != kvlane.Sim && d != kvlane.Host {
		errs = append(errs, fmt.Errorf("--device %q: must be cuda, sim or host", d))
	}
	for _, text := range f.work {
		o.Work = append(o.Work, request.Work(text))
	}
	for _, text := range f.forms {
		o.Forms = append(o.Forms, request.Form(text))
	}
	for _, text := range f.hits {
		o.Hits = append(o.Hits, request.Hits(text))
	}
	if f.productRows < matmul.MinRows || f.productRows > matmul.MaxRows || f.productRows%matmul.RowStep != 0 {
		errs = append(errs, fmt.Errorf("--product-rows %d: must be a multiple of %d, from %d to %d", f.productRows, matmul.RowStep, matmul.MinRows, matmul.MaxRows))
	}
	if f.withProduct {
		o.OpenProduct = func(ctx context.Context, dev device.Device) (request.Product, error) {
			p, err := matmul.Open(ctx, dev, f.cublaslt, f.productRows)
			if err != nil {
				// return a nil interface, not a nil *Product
				return nil, fmt.Errorf("--beside-matmul: %w", err)
			}
			return p, nil
		}
	}
	o.Open = func(ctx context.Context, c kvlane.Config) (*kvlane.Engine, error) { return openEngine(ctx, c, logNote) }
	errs = append(errs, o.Validate(), f.comparing.check())
	if err := errors.Join(errs...); err != nil {
		return &usageError{err}
	}
	return nil
}

// storeNames are the settings of the measured engine.
var storeNames = []string{"path", "policy", "calibrate", "verify", "fsync", "log-fsync", "direct"}

// engineOptions returns the given options of the engine as text.
func engineOptions(fl *pflag.FlagSet) string {
	var texts []string
	for _, name := range append(slices.Clone(storeNames), "pipeline", "cache-bytes") {
		if f := fl.Lookup(name); f.Changed {
			texts = append(texts, fmt.Sprintf("--%s %s", name, f.Value))
		}
	}
	return strings.Join(texts, " ")
}

// print prints the report as text or JSON, writes the file, and compares.
func (f *storeBench) print(cmd *cobra.Command, r, earlier *request.Report) error {
	var err error
	if f.json {
		err = writeJSON(cmd, r)
	} else {
		err = r.WriteText(cmd.OutOrStdout())
	}
	if err == nil && f.out != "" {
		err = writeFile(f.out, r)
	}
	if err != nil {
		return err
	}
	if earlier == nil {
		return nil
	}
	return f.comparing.print(cmd, f.json, func(noise float64) *bench.Comparison { return r.Compare(earlier, noise) })
}
