// Package chart draws a benchmark's report: bandwidth and share of one large copy by block size, latency by count, the share as a map
// of size by count and as distributions, what the stream's own choice loses, what the copies cost the product that runs beside them, and bandwidth between devices. Each
// chart is written as SVG and as PNG. A contender has the same color, marker and dash in all of them; the colors are those
// of Okabe and Ito ("Color universal design", 2008), which people tell apart whatever colors they see.
package chart
