package plan

import (
	"fmt"
	"math"
	"slices"

	"github.com/kvlane/kvlane/errdefs"
)

// Point is a measured batch: Count copies of Size bytes took Nanos alone. Each further batch of the
// same kind that was submitted with it added Marginal nanoseconds; zero if that was not measured.
// Spread is the spread of the repetitions, relative to Nanos.
type Point struct {
	Count    int
	Size     int64
	Nanos    float64
	Marginal float64
	Spread   float64
}

// atMostFaster bounds the rate of further copies relative to that of one large copy, whose time
// includes its start.
const atMostFaster = 1.05

// Fit sets Times, Lead, Spread and Points of m from measurements at the sizes and counts of p.
// Times that fall as the count grows are noise, and are replaced by their mean. Missing times are
// interpolated between the nearest measured ones, or extrapolated. Fit returns an error if there
// are no points, or if a point is invalid or not at a size and count of p.
func (m *Model) Fit(p *Profile, points []Point) error {
	width := len(p.Counts)
	m.Times = make([]float64, len(p.Sizes)*width)
	for _, q := range points {
		i, k := slices.Index(p.Sizes, q.Size), slices.Index(p.Counts, int64(q.Count))
		if i < 0 || k < 0 || !(q.Nanos > 0 && q.Nanos <= maxNanos) {
			return fmt.Errorf("fit %s: a point of %d copies of %d bytes in %v ns: %w", m.id(), q.Count, q.Size, q.Nanos, errdefs.ErrInvalid)
		}
		m.row(i, width)[k] = q.Nanos
	}
	if len(points) == 0 {
		return fmt.Errorf("fit %s: no points: %w", m.id(), errdefs.ErrInvalid)
	}
	for i := range p.Sizes {
		least := 0.0
		if gbps := p.GBps[m.Dir]; gbps > 0 {
			least = float64(p.Sizes[i]) / (atMostFaster * gbps)
		}
		fillRow(p.Counts, m.row(i, width), least)
	}
	m.fillSizes(p)
	m.Points, m.Spread = len(points), medianOf(points, func(q *Point) (float64, bool) { return q.Spread, true })
	m.Lead = medianOf(points, func(q *Point) (float64, bool) { return max(0, q.Nanos-q.Marginal), q.Marginal > 0 })
	return nil
}

// fillRow makes the times of one size non-decreasing and fills those that are zero. Beyond the
// longest measured batch, each further copy takes at least least. A row without measurements stays
// unchanged.
func fillRow(counts []int64, row []float64, least float64) {
	var at []int
	for k, t := range row {
		if t > 0 {
			at = append(at, k)
		}
	}
	if len(at) == 0 {
		return
	}
	flatten(row, at)
	first, last := at[0], at[len(at)-1]
	each := max(least, growth(counts, row, at))
	for k := range row {
		n := float64(counts[k])
		switch {
		case row[k] > 0 && k != last:
		case k < first:
			// The start-up time may dominate batches with fewer copies than were measured.
			row[k] = row[first]
		case k < last:
			i, _ := slices.BinarySearch(at, k)
			low, high := at[i-1], at[i]
			frac := (n - float64(counts[low])) / float64(counts[high]-counts[low])
			row[k] = row[low] + frac*(row[high]-row[low])
		default:
			row[k] = row[last] + each*(n-float64(counts[last]))
		}
	}
	// Counts beyond the profile's are extrapolated from the last two entries.
	n := len(row)
	before := row[n-1] - each*float64(counts[n-1]-counts[n-2])
	if n > 2 {
		before = max(before, row[n-3])
	}
	row[n-2] = before
	if row[n-1] <= row[n-2] {
		row[n-1] = row[n-2] + each*float64(counts[n-1]-counts[n-2])
	}
}

// growth returns the time of each copy beyond the longest measured batch. It is the growth between
// the two longest batches, or the mean time of a copy if there is no growth.
func growth(counts []int64, row []float64, at []int) float64 {
	last, before := at[len(at)-1], at[max(0, len(at)-2)]
	if row[last] == row[before] {
		return row[last] / float64(counts[last])
	}
	return (row[last] - row[before]) / float64(counts[last]-counts[before])
}

// flatten makes the entries at the given indices non-decreasing: each falling run is replaced by
// its mean. The result is the nearest non-decreasing sequence by least squares.
func flatten(row []float64, at []int) {
	type level struct {
		sum float64
		n   int
	}
	mean := func(l level) float64 { return l.sum / float64(l.n) }
	var levels []level
	for _, k := range at {
		l := level{row[k], 1}
		for len(levels) > 0 && mean(levels[len(levels)-1]) > mean(l) {
			top := levels[len(levels)-1]
			l = level{l.sum + top.sum, l.n + top.n}
			levels = levels[:len(levels)-1]
		}
		levels = append(levels, l)
	}
	i := 0
	for _, l := range levels {
		for range l.n {
			row[at[i]] = mean(l)
			i++
		}
	}
}

// fillSizes fills the rows of sizes without measurements. It interpolates between measured sizes.
// Smaller sizes get the times of the smallest measured size. Larger copies count as several copies
// of the largest measured size.
func (m *Model) fillSizes(p *Profile) {
	width := len(p.Counts)
	var known []int
	for i := range p.Sizes {
		if m.Times[i*width] > 0 {
			known = append(known, i)
		}
	}
	for i, size := range p.Sizes {
		at, ok := slices.BinarySearch(known, i)
		if ok {
			continue
		}
		row := m.row(i, width)
		switch at {
		case 0:
			copy(row, m.row(known[0], width))
		case len(known):
			last := known[at-1]
			for k, n := range p.Counts {
				c := locate(p.Counts, float64(n)*float64(size)/float64(p.Sizes[last]))
				row[k] = between(m.row(last, width)[c.i:], c.frac)
			}
		default:
			low, high := known[at-1], known[at]
			frac := float64(size-p.Sizes[low]) / float64(p.Sizes[high]-p.Sizes[low])
			for k := range row {
				a, b := m.row(low, width)[k], m.row(high, width)[k]
				row[k] = a + frac*(b-a)
			}
		}
	}
}

// medianOf returns the median of the values for which of sets ok, except NaN. It returns zero if
// there are none.
func medianOf(points []Point, of func(*Point) (v float64, ok bool)) float64 {
	var all []float64
	for i := range points {
		if v, ok := of(&points[i]); ok && !math.IsNaN(v) {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}
