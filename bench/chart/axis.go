package chart

import (
	"fmt"
	"math"
	"strconv"

	"gonum.org/v1/plot"
)

// sizeTicks marks powers of two of bytes: every second with its size, the others without.
type sizeTicks struct{}

// Ticks implements plot.Ticker.
func (sizeTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for e := int(math.Floor(math.Log2(low))); e <= int(math.Ceil(math.Log2(high))); e++ {
		v := math.Ldexp(1, e)
		if v < low*0.999 || v > high*1.001 {
			continue
		}
		t := plot.Tick{Value: v}
		if e%2 == 0 {
			t.Label = sizeText(int64(v))
		}
		ticks = append(ticks, t)
	}
	return ticks
}

func sizeText(n int64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%dM", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%dK", n>>10)
	}
	return strconv.FormatInt(n, 10)
}

// decadeTicks marks powers of ten with their value, and the multiples between without.
type decadeTicks struct{}

// Ticks implements plot.Ticker.
func (decadeTicks) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	// A range within a decade has labels between, too.
	short := high/low < 20
	for e := int(math.Floor(math.Log10(low))); e <= int(math.Ceil(math.Log10(high))); e++ {
		for m := 1; m < 10; m++ {
			v := float64(m) * math.Pow10(e)
			if v < low*0.999 || v > high*1.001 {
				continue
			}
			t := plot.Tick{Value: v}
			if m == 1 || short && (m == 2 || m == 5) {
				t.Label = strconv.FormatFloat(v, 'f', -1, 64)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

// logX makes x logarithmic over what the panel shows, with some room at both ends.
func logX(p *plot.Plot, t plot.Ticker) {
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, t
	p.X.Min, p.X.Max = p.X.Min/1.2, p.X.Max*1.2
}

// logY makes y logarithmic, up to the next 1, 2 or 5 of a decade.
func logY(p *plot.Plot) {
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decadeTicks{}
	p.Y.Min, p.Y.Max = p.Y.Min/1.3, p.Y.Max*1.3
}
