// Command prefill computes the KV of a prompt in one process and has it in the pages of another, layer by layer: go run ./examples/prefill
//
// Both processes have host memory here, which the second one shares, so that the layers go by its mapping; between hosts they go over TCP,
// and GPU memory goes over NVLink, with the same calls.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/kvlane/kvlane/share"
	"github.com/kvlane/kvlane/transfer"
	"github.com/kvlane/kvlane/transfer/handover"
)

// A model of 8 layers, K and V, whose pages have 64 KiB; 64 pages on either side, of which the request takes 4.
const (
	layers, pages, pageBytes = 8, 64, 64 << 10
	total                    = layers * 2 * pages * pageBytes
)

var pairs = []transfer.PagePair{{Local: 0, Remote: 17}, {Local: 1, Remote: 3}, {Local: 2, Remote: 40}, {Local: 3, Remote: 41}}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	run := prefill
	if len(os.Args) > 1 && os.Args[1] == "decode" {
		run = decode
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "prefill:", err)
		os.Exit(1)
	}
}

// planes are where both sides have K and V of a layer.
func planes(here *share.HostMemory, layer int) (both []transfer.PagePlane) {
	for i := range 2 {
		base := int64((2*layer + i) * pages * pageBytes)
		both = append(both, transfer.PagePlane{
			Region: here.Region(), Base: base, Stride: pageBytes, Bytes: pageBytes, RemoteBase: base, RemoteStride: pageBytes,
		})
	}
	return both
}

// page returns a page of K (0) or V (1) of a layer.
func page(of *share.HostMemory, layer, plane int, n uint32) []byte {
	return of.Region().Bytes()[((2*layer+plane)*pages+int(n))*pageBytes:][:pageBytes]
}

// value stands for what a model computes for a page.
func value(layer, plane int, page uint32) byte { return byte(layer*31 + plane*7 + int(page) + 1) }

// prefill computes, and hands each layer over.
func prefill(ctx context.Context) (err error) {
	other := exec.CommandContext(ctx, os.Args[0], "decode")
	other.Stderr = os.Stderr
	out, err := other.StdoutPipe()
	if err != nil {
		return err
	}
	if err := other.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	address, err := lines.ReadString('\n')
	if err != nil {
		return err
	}
	here, err := share.AllocHost(nil, total)
	if err != nil {
		return err
	}
	importer, err := share.NewImporter(nil, share.ImportOptions{})
	if err != nil {
		return err
	}
	e, err := transfer.Open(transfer.Options{Importer: importer})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(ctx), importer.Close(), here.Close()) }()
	remote, err := e.OpenSegment(ctx, strings.TrimSpace(address)+"/decode")
	if err != nil {
		return err
	}
	var o handover.Options
	for k := range layers {
		o.Layers = append(o.Layers, planes(here, k))
	}
	sender, err := handover.NewSender(e, remote, o)
	if err != nil {
		return err
	}
	request, err := sender.Begin([]byte("request 1"), pairs)
	if err != nil {
		return err
	}
	for k := range layers {
		for i := range 2 {
			for _, p := range pairs {
				copy(page(here, k, i, p.Local), bytes.Repeat([]byte{value(k, i, p.Local)}, pageBytes))
			}
		}
		if err := request.Layer(ctx, k); err != nil { // a GPU's would come after the ticket of what computes it
			return err
		}
	}
	if err := request.Finish(ctx); err != nil {
		return err
	}
	for line, err := lines.ReadString('\n'); err == nil; line, err = lines.ReadString('\n') {
		fmt.Fprint(os.Stdout, line)
	}
	return other.Wait()
}

// decode offers its pages, and waits for a request.
func decode(ctx context.Context) (err error) {
	there, err := share.AllocHost(nil, total)
	if err != nil {
		return err
	}
	server, err := share.NewServer(share.Options{})
	if err != nil {
		return err
	}
	if err := server.Start(ctx); err != nil {
		return err
	}
	e, err := transfer.Open(transfer.Options{Share: server})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close(ctx), server.Close(ctx), there.Close()) }()
	segment, err := e.Publish(ctx, "decode")
	if err != nil {
		return err
	}
	if _, err := segment.Register(there.Region(), transfer.RegisterOptions{Source: there}); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, e.Address())
	receiver := handover.NewReceiver(e, 0)
	for {
		got, err := receiver.Receive(ctx)
		switch {
		case err != nil:
			return err
		case got.Failed:
			return fmt.Errorf("%s failed: its pages are undefined", got.Request)
		}
		for i := range 2 {
			for _, p := range pairs {
				if !bytes.Equal(page(there, got.Layer, i, p.Remote), bytes.Repeat([]byte{value(got.Layer, i, p.Local)}, pageBytes)) {
					return fmt.Errorf("%s: layer %d has wrong bytes", got.Request, got.Layer)
				}
			}
		}
		fmt.Fprintf(os.Stdout, "%s: layer %d of %d is in its pages\n", got.Request, got.Layer, got.Layers)
		if got.Complete {
			fmt.Fprintf(os.Stdout, "%s: decoding can begin\n", got.Request)
			return nil
		}
	}
}
