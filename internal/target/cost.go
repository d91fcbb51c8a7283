package target

import (
	"fmt"

	"github.com/kvlane/kvlane/bench"
)

// beside are what the background policy moves beside a matrix product, and what that costs the product.
func beside(r *bench.Report) []Result {
	const who = bench.Auto + ":" + string(bench.Background)
	var all []Result
	for _, d := range []bench.Direction{bench.ToDevice, bench.ToHost} {
		moved := atLeast(40, GBps, fmt.Sprintf("beside/moved/%s", d), "%s beside a matrix product, blocks of 4 KiB, %s", who, d)
		lost := atMost(3, Percent, fmt.Sprintf("beside/lost/%s", d), "what that costs the product, upper bound of the 95%% interval, %s", d)
		switch f := r.Product; {
		case f == nil:
			moved, lost = moved.note("no product ran"), lost.note("no product ran")
		case !f.Counts:
			why := fmt.Sprintf("the product reached %.0f TFLOP/s alone, and should %d", f.AloneTFLOPS, bench.MinTFLOPS)
			moved, lost = moved.note("%s", why), lost.note("%s", why)
		default:
			for _, l := range f.Losses {
				if l.Path == who && l.Direction == d {
					moved = moved.of(l.GBps).note("%s, batches of %s, by %s", f.Layout, bench.BytesText(f.BatchBytes), l.Traveled)
					lost = lost.of(100*l.High).note("mean %.1f%%, from %.1f%%", 100*l.Loss, 100*l.Low)
				}
			}
		}
		all = append(all, moved, lost)
	}
	return all
}

// checksums are what checksums on the way cost, where they cost most.
func checksums(r *bench.Report) []Result {
	var all []Result
	for _, d := range []bench.Direction{bench.ToDevice, bench.ToHost} {
		t := atMost(3, Percent, fmt.Sprintf("checksums/%s", d), "slower with checksums on the way, worst block size, %s", d)
		for i := range r.Forms {
			p := &r.Forms[i]
			if p.Direction != d || p.Form != bench.PagesSummed {
				continue
			}
			cost, ok := r.ChecksumCost(p)
			switch {
			case !p.Summed:
				t = t.note("the device made no checksums")
			case ok && (t.State == NotMeasured || 100*cost > t.Measured):
				t = t.of(100*cost).note("%d x %s: %.1f GB/s with, by %s", p.Count, bench.BytesText(p.Size), p.GBps, p.Traveled)
			}
		}
		all = append(all, t)
	}
	return all
}

// maxAllocs is what counts as no allocation a block: those of a batch, and of whatever else the process does meanwhile.
const maxAllocs = 0.01

// submit is what Submit costs the CPU, and that nothing is allocated a block, in the worse direction.
func submit(r *bench.Report) []Result {
	lists := atMost(60, Nanos, "submit/lists", "Submit of a list of %d blocks of 4 KiB", bench.SubmitBlocks)
	pages := atMost(10, Nanos, "submit/pages", "Submit of a page list of %d blocks of 4 KiB", bench.SubmitBlocks)
	allocs := atMost(maxAllocs, Allocs, "submit/allocations", "heap allocations a block, from Submit to done")
	for i := range r.Forms {
		p := &r.Forms[i]
		if p.Size != bench.SubmitBytes || p.Count != bench.SubmitBlocks || p.Form == bench.PagesSummed {
			continue
		}
		t := &lists
		if p.Form == bench.Pages {
			t = &pages
		}
		if ns := p.SubmitNanos(); t.State == NotMeasured || ns > t.Measured {
			*t = t.of(ns).note("%s", p.Direction)
		}
		if allocs.State == NotMeasured || p.AllocsPerBlock > allocs.Measured {
			allocs = allocs.of(p.AllocsPerBlock).note("%s, %s", p.Form, p.Direction)
		}
	}
	return []Result{lists, pages, allocs}
}
