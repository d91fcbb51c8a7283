// Command scale simulates 1,000 block servers with 16 million runs (package scalesim). It prints the
// figures, and writes the charts of docs/scale.md.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kvlane/kvlane/internal/scalesim"
)

func main() {
	c := scalesim.Config{Zones: 10, Warm: 300 * time.Second, Phase: 60 * time.Second}
	flag.IntVar(&c.Servers, "servers", 1000, "number of servers")
	flag.IntVar(&c.Runs, "runs", 16_000_000, "number of runs of 64 blocks")
	flag.IntVar(&c.Clients, "clients", 64, "number of clients")
	flag.Float64Var(&c.Rate, "rate", 200_000, "requests for each second, before the caches")
	flag.Uint64Var(&c.Seed, "seed", 1, "seed")
	charts := flag.String("charts", "", "directory for the charts")
	flag.Parse()
	if err := run(c, *charts); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(c scalesim.Config, charts string) error {
	r, err := scalesim.Run(c)
	if err != nil {
		return err
	}
	if err := r.Write(os.Stdout); err != nil {
		return err
	}
	c.CacheRuns, c.Rate, c.Warm, c.Phase = -1, c.Rate/5, 60*time.Second, 60*time.Second
	without, err := scalesim.Balance(c)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(os.Stdout, "\nWithout caches: requests of the busiest server by the mean %.3f. Without replicas it would have at least %.1f.\n",
		without.RequestsRatio, without.Hottest*float64(c.Servers))
	if err != nil || charts == "" {
		return err
	}
	for name, write := range map[string]func(io.Writer) error{"scale-balance.svg": r.WriteBalance, "scale-hits.svg": r.WriteHits} {
		f, err := os.Create(filepath.Join(charts, name))
		if err != nil {
			return err
		}
		if err := cmp.Or(write(f), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
