package load

import (
	"github.com/kvlane/kvlane/store/batch"
)

// A layerwise load that streams of the host program wait for is copied in strides. While fewer
// layers than a row are ahead of the streams, a stride consists of single layers, which complete as
// early as possible. After that a stride is a row of layers: its copy takes longer, and slows the
// model down less. See ADR 40.
const (
	// minStrideParts is the size of the smallest load that is copied in strides, as a multiple of
	// Config.PartBytes. Smaller loads end before a second stride could be chosen.
	minStrideParts = 32
	// strideParts is the smallest size of a stride of single layers, as a multiple of
	// Config.PartBytes. Copying 32 MiB takes 600 us over PCIe 5.
	strideParts = 16
	// maxStrides is the number of strides in the stream: one is copied while the next is chosen.
	maxStrides = 2
)

// usesStrides reports whether g is copied in strides. It counts the blocks that are not looked up
// yet, because they will join g.
func (t *Task) usesStrides(g *group) bool {
	if !t.layers.Awaited() || t.l.RowBytes == 0 {
		return false
	}
	formats := t.p.Map.Formats
	n := int64(0)
	for pageGroup, items := range g.Items {
		n += int64(len(items)) * formats[pageGroup].Layout.ImageBytes()
	}
	for _, i := range t.sc.Todo {
		n += formats[t.sc.Groups[i]].Layout.ImageBytes()
	}
	return n >= minStrideParts*t.l.PartBytes
}

// copyLayers submits the next layers of g: all of them, or, with strides, up to maxStrides. If g
// has failed, it plans the remaining layers and submits nothing.
func (t *Task) copyLayers(g *group) {
	last := t.p.Map.NumLayers()
	for t.layerwise && g.nextLayer < last {
		switch {
		case g.Err != nil:
			g.PlanLayers(g.nextLayer, last)
			g.nextLayer = last
		case !t.usesStrides(g):
			t.planSteps(g, last, t.l.RowBytes, 0)
			t.submit(g, false)
		case g.Batches()-max(g.Resolved, g.headBatches) >= maxStrides:
			return
		default:
			t.copyStride(g)
		}
	}
}

// copyStride submits a stride of g: single layers while less than a row is ahead of the streams,
// otherwise a row.
func (t *Task) copyStride(g *group) {
	m := t.p.Map
	row, bytes := g.nextLayer, int64(0)
	for ; row < m.NumLayers() && bytes < t.l.RowBytes; row++ {
		bytes += m.LayerBytes(row)
	}
	missing := row - g.nextLayer - (g.nextLayer - t.layers.Wanted())
	if missing <= 0 {
		t.planSteps(g, row, t.l.RowBytes, t.l.RowBytes)
		t.submit(g, false)
		return
	}
	last := g.nextLayer
	for bytes = 0; last < min(g.nextLayer+missing, m.NumLayers()) && bytes < strideParts*t.l.PartBytes; last++ {
		bytes += m.LayerBytes(last) * int64(len(g.Items[m.Shard(last).Group]))
	}
	t.planSteps(g, last, 0, 0)
	t.submit(g, true)
}

// planSteps plans layers g.nextLayer to last-1 in steps of layers that complete together. A step
// has at least Config.PartBytes of all blocks, and at least min(rowBytes, before) bytes of one
// block. before is the number of bytes of one block in earlier steps, so that steps grow up to
// rowBytes.
func (t *Task) planSteps(g *group, last int, rowBytes, before int64) {
	m := t.p.Map
	for first := g.nextLayer; first < last; {
		end, total, perBlock := first, int64(0), int64(0)
		for end < last && (end == first || total < t.l.PartBytes || perBlock < min(rowBytes, before)) {
			n := m.LayerBytes(end)
			total += int64(len(g.Items[m.Shard(end).Group])) * n
			perBlock += n
			end++
		}
		before += perBlock
		g.PlanLayers(first, end)
		first = end
	}
	g.nextLayer = last
}

// submit submits the parts of g that are planned and not yet submitted. awaited is set if a stream
// of the host program waits for them.
func (t *Task) submit(g *group, awaited bool) {
	if g.Err != nil || len(g.Parts) == g.SubmittedParts() {
		return
	}
	g.Submit(t.base.Context(), batch.SubmitOptions{Sums: t.copySums, Awaited: awaited})
	if g.Err != nil {
		return
	}
	if g.Batches() == 1 {
		t.inFlight++
	}
	for i := range g.All {
		t.sc.Items[i].Touched = true
	}
}
