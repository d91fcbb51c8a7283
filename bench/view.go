package bench

import (
	"cmp"
	"slices"
)

// Row is the list of points of one contender for one direction and arrangement.
type Row struct {
	Path   string
	Points []Point
}

// BySize returns a row for each contender, in the order of the run. For each block size the row has
// the point with the most blocks.
func (r *Report) BySize(d Direction, l Layout) []Row {
	return r.rows(func(p *Point) bool { return p.Direction == d && p.Layout == l }, func(p *Point) int64 { return p.Size })
}

// ByCount returns a row for each contender with the points of one block size, sorted by count.
func (r *Report) ByCount(size int64, d Direction, l Layout) []Row {
	return r.rows(func(p *Point) bool { return p.Size == size && p.Direction == d && p.Layout == l }, func(p *Point) int64 { return int64(p.Count) })
}

// rows groups points by path. If several points have the same key, it keeps the one with the most
// blocks.
func (r *Report) rows(want func(*Point) bool, key func(*Point) int64) []Row {
	var rows []Row
	for i := range r.Points {
		p := &r.Points[i]
		if !want(p) {
			continue
		}
		at := slices.IndexFunc(rows, func(row Row) bool { return row.Path == p.Path })
		if at < 0 {
			at = len(rows)
			rows = append(rows, Row{Path: p.Path})
		}
		row := &rows[at]
		old := slices.IndexFunc(row.Points, func(q Point) bool { return key(&q) == key(p) })
		switch {
		case old < 0:
			row.Points = append(row.Points, *p)
		case p.Count > row.Points[old].Count:
			row.Points[old] = *p
		}
	}
	for _, row := range rows {
		slices.SortFunc(row.Points, func(a, b Point) int { return cmp.Compare(key(&a), key(&b)) })
	}
	return rows
}

// LatencySize returns the block size with the most counts. It is the argument for ByCount.
func (r *Report) LatencySize() int64 {
	counts := make(map[int64]map[int]bool)
	var best int64
	for _, p := range r.Points {
		if counts[p.Size] == nil {
			counts[p.Size] = make(map[int]bool)
		}
		counts[p.Size][p.Count] = true
	}
	for size, n := range counts {
		switch old := len(counts[best]); {
		case len(n) > old, len(n) == old && (size == latencySize || best != latencySize && size < best):
			best = size
		}
	}
	return best
}
