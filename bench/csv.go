package bench

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
)

// section is a list of points of a report.
type section struct {
	name   string
	points []Point
}

// WriteCSV writes the points, one a line, with a header line: those between host and device, of the forms, and between devices. Every line says on what it was measured and whether it was
// simulated, as lines get parted from their file.
func (r *Report) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	rows := [][]string{{
		"device", "simulated", "section", "form", "path", "block_bytes", "count", "blocks", "direction", "layout", "bytes", "reps",
		"gbps", "low_gbps", "high_gbps", "large_copy_gbps", "share_of_large_copy", "mean_us", "p50_us", "p99_us",
		"prep_us", "prep_p99_us", "post_us", "post_p50_us", "post_p99_us", "tx_us", "tx_p99_us", "traveled", "predicted_us", "summed", "allocs_per_block", "cpus_busy",
	}}
	float := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	sections := []section{{"host", r.Points}, {"nic-soft", r.Soft}, {"forms", r.Forms}}
	if r.Peers != nil {
		sections = append(sections, section{"peers", r.Peers.Points})
	}
	for _, s := range sections {
		for i := range s.points {
			p := &s.points[i]
			rows = append(rows, []string{
				r.Machine.Device, strconv.FormatBool(r.Machine.Simulated), s.name, string(p.Form), p.Path, strconv.FormatInt(p.Size, 10), strconv.Itoa(p.Count),
				strconv.Itoa(p.Blocks), string(p.Direction), string(p.Layout), strconv.FormatInt(p.Bytes, 10), strconv.Itoa(p.Reps),
				float(p.GBps), float(p.LowGBps), float(p.HighGBps), float(p.LargeGBps), float(p.Share), float(p.MeanMicros), float(p.P50Micros), float(p.P99Micros),
				float(p.PrepMicros), float(p.PrepP99Micros), float(p.PostMicros), float(p.PostP50Micros), float(p.PostP99Micros),
				float(p.TxMicros), float(p.TxP99Micros), p.Traveled, float(p.PredictedMicros), strconv.FormatBool(p.Summed), float(p.AllocsPerBlock), float(p.BusyCPUs),
			})
		}
	}
	if err := c.WriteAll(rows); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
