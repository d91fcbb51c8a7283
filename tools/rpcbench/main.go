// Command rpcbench compares echo calls of package rpc with grpc-go and bare sockets, as `kvlane rpc
// bench` does without grpc-go. Clients and servers run in this process.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/kvlane/kvlane/bench/calls"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "rpcbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	o := calls.Options{Extra: []calls.Opener{openGRPC}}
	callers := flag.String("callers", "8,32", "calls in progress, comma-separated")
	sizes := flag.String("sizes", "4096", "bytes of messages, comma-separated")
	attachments := flag.String("attachments", "", "bytes of attachments, comma-separated; without grpc-go, which has none")
	flag.IntVar(&o.Rounds, "rounds", 5, "interleaved rounds")
	flag.DurationVar(&o.Duration, "duration", time.Second, "measuring time of a subject in each round")
	asJSON := flag.Bool("json", false, "print one JSON object")
	flag.Parse()
	numbers, err := parse(*callers)
	for _, n := range numbers {
		o.Callers = append(o.Callers, int(n))
	}
	bodies, sizesErr := parse(*sizes)
	files, attachmentsErr := parse(*attachments)
	if err := errors.Join(err, sizesErr, attachmentsErr); err != nil {
		return err
	}
	o.Bodies, o.Attachments = bodies, files
	r, err := calls.Run(ctx, o)
	if r == nil {
		return err
	}
	r.Command = strings.Join(append([]string{"rpcbench"}, os.Args[1:]...), " ")
	if *asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return errors.Join(err, enc.Encode(r))
	}
	return errors.Join(err, r.WriteText(os.Stdout))
}

func parse(list string) ([]int64, error) {
	var all []int64
	for _, text := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}
