// Command prefill computes the KV of a prompt in one process and has it in the pages of another, layer by layer: go run ./examples/prefill
//
// Both engines compute on the CPU here, so that the layers go over TCP. Without DeviceConfig both are on a GPU, whose memory goes over NVLink
// within a host, by the same calls.
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

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/mem"
)

// A model of 8 layers, K and V, whose pages have 64 KiB; 64 pages on either side, of which the request takes 4.
const layers, pages = 8, 64

var (
	model = block.Geometry{Model: "example", Layers: layers, KVHeads: 8, HeadSize: 128, DType: "bfloat16", BlockTokens: 32, TPSize: 1}
	pairs = []kvlane.PagePair{{Local: 0, Remote: 17}, {Local: 1, Remote: 3}, {Local: 2, Remote: 40}, {Local: 3, Remote: 41}}
)

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

// worker is an engine with a paged KV cache, and its transfers.
type worker struct {
	engine   *kvlane.Engine
	kv       *mem.Region // stands for what an inference engine has allocated
	cache    *kvlane.Cache
	transfer *kvlane.Transfer
}

func open(ctx context.Context) (w *worker, err error) {
	w = new(worker)
	if w.engine, err = kvlane.Open(ctx, kvlane.Config{
		Model: model, Device: kvlane.DeviceConfig{Driver: kvlane.Host}, Store: kvlane.StoreConfig{CacheBytes: 64 << 20, Pipeline: "cache"},
	}); err != nil {
		return nil, err
	}
	m := kvlane.CacheMemory{Pages: pages, PageBytes: model.PlaneBytes()}
	if w.kv, err = w.engine.Device().AllocHost(2 * layers * pages * m.PageBytes); err != nil {
		return nil, err
	}
	for plane := range mem.DevAddr(2 * layers) {
		m.Planes = append(m.Planes, w.kv.Dev()+plane*pages*mem.DevAddr(m.PageBytes))
	}
	if w.cache, err = w.engine.RegisterCache(m); err != nil {
		return nil, err
	}
	w.transfer, err = w.engine.OpenTransfer(ctx, kvlane.TransferConfig{})
	return w, err
}

func (w *worker) close(ctx context.Context) error {
	return errors.Join(w.transfer.Close(ctx), w.cache.Close(ctx), w.engine.Device().Free(w.kv), w.engine.Close(ctx))
}

// page returns a page of K (0) or V (1) of a layer.
func (w *worker) page(layer, plane int, n uint32) []byte {
	size := int(model.PlaneBytes())
	return w.kv.Bytes()[((2*layer+plane)*pages+int(n))*size:][:size]
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
	w, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(ctx)) }()
	receiver, err := w.transfer.Connect(ctx, strings.TrimSpace(address)+"/decode", w.cache)
	if err != nil {
		return err
	}
	request, err := receiver.Begin([]byte("request 1"), pairs)
	if err != nil {
		return err
	}
	for k := range layers {
		for i := range 2 {
			for _, p := range pairs {
				page := w.page(k, i, p.Local)
				copy(page, bytes.Repeat([]byte{value(k, i, p.Local)}, len(page)))
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
	w, err := open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(ctx)) }()
	if err := w.transfer.Offer(ctx, "decode", w.cache); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, w.transfer.Address())
	for {
		got, err := w.transfer.Receive(ctx)
		switch {
		case err != nil:
			return err
		case got.Failed:
			return fmt.Errorf("%s failed: its pages are undefined", got.Request)
		}
		for i := range 2 {
			for _, p := range pairs {
				page := w.page(got.Layer, i, p.Remote)
				if !bytes.Equal(page, bytes.Repeat([]byte{value(got.Layer, i, p.Local)}, len(page))) {
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
