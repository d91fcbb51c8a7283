// Command prefill computes the KV cache of a prompt in one process and transfers it layer by layer
// to the pages of another process: go run ./examples/prefill
//
// Both engines compute on the CPU, and the layers go over TCP. With -device cuda both use the first
// GPU: one process shares its memory, the other imports it, and the layers are copied there.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/stream"
)

// layers is the number of layers of the model. pages is the number of pages in each process. A page
// of K or V has 64 KiB. The request uses 4 pages.
const layers, pages = 8, 64

var (
	model = block.Geometry{Model: "example", Layers: layers, KVHeads: 8, HeadSize: 128, DType: "bfloat16", BlockTokens: 32, TPSize: 1}
	pairs = []kvlane.PagePair{{Local: 0, Remote: 17}, {Local: 1, Remote: 3}, {Local: 2, Remote: 40}, {Local: 3, Remote: 41}}
)

func main() {
	driver := flag.String("device", string(kvlane.Host), "device of both engines: host, cuda, or sim (a simulated GPU)")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	run := prefill
	if flag.Arg(0) == "decode" {
		run = decode
	}
	if err := run(ctx, kvlane.Driver(*driver)); err != nil {
		fmt.Fprintln(os.Stderr, "prefill:", err)
		os.Exit(1)
	}
}

// worker is an engine with a paged KV cache that transfers to or from another process.
type worker struct {
	engine   *kvlane.Engine
	kv       *mem.Region // stands for the memory of an inference engine
	host     *mem.Region // host copy of the request's pages
	cache    *kvlane.Cache
	stream   stream.EventStream
	transfer *kvlane.Transfer
}

func open(ctx context.Context, driver kvlane.Driver) (w *worker, err error) {
	w = new(worker)
	if w.engine, err = kvlane.Open(ctx, kvlane.Config{
		Model: model, Device: kvlane.DeviceConfig{Driver: driver}, Store: kvlane.StoreConfig{CacheBytes: 64 << 20, Pipeline: "cache"},
	}); err != nil {
		return nil, err
	}
	m := kvlane.CacheMemory{Pages: pages, PageBytes: model.PlaneBytes()}
	if w.kv, err = w.engine.Device().Alloc(2*layers*pages*m.PageBytes, device.AllocOptions{Shareable: true}); err != nil {
		return nil, err
	}
	if w.host, err = w.engine.Device().AllocHost(2 * layers * int64(len(pairs)) * m.PageBytes); err != nil {
		return nil, err
	}
	for plane := range mem.DevAddr(2 * layers) {
		m.Planes = append(m.Planes, w.kv.Dev()+plane*pages*mem.DevAddr(m.PageBytes))
	}
	if w.cache, err = w.engine.RegisterCache(m); err != nil {
		return nil, err
	}
	if w.stream, err = w.engine.OpenStream(); err != nil {
		return nil, err
	}
	w.transfer, err = w.engine.OpenTransfer(ctx, kvlane.TransferConfig{})
	return w, err
}

func (w *worker) close(ctx context.Context) error {
	d := w.engine.Device()
	return errors.Join(w.transfer.Close(ctx), w.stream.Close(ctx), w.cache.Close(ctx), d.Free(w.kv), d.Free(w.host), w.engine.Close(ctx))
}

// page returns a page of K (0) or V (1) of a layer.
func (w *worker) page(layer, plane int, n uint32) mem.Extent {
	size := model.PlaneBytes()
	return mem.Extent{Region: w.kv, Off: (int64(2*layer+plane)*pages + int64(n)) * size, Len: size}
}

// onHost returns the host memory of the i-th page of the request.
func (w *worker) onHost(layer, plane, i int) mem.Extent {
	size := model.PlaneBytes()
	return mem.Extent{Region: w.host, Off: int64((2*layer+plane)*len(pairs)+i) * size, Len: size}
}

func (w *worker) bytes(e mem.Extent) []byte { return w.host.Bytes()[e.Off:][:e.Len] }

// want returns the contents of a page. They stand for a model's result.
func want(layer, plane int, page uint32) []byte {
	return bytes.Repeat([]byte{byte(layer*31 + plane*7 + int(page) + 1)}, int(model.PlaneBytes()))
}

// compute writes a layer to its pages, in place of a model. The ticket completes when the layer is
// written.
func (w *worker) compute(ctx context.Context, layer int) (*stream.Ticket, error) {
	b := new(mem.Batch)
	for plane := range 2 {
		for i, p := range pairs {
			from := w.onHost(layer, plane, i)
			copy(w.bytes(from), want(layer, plane, p.Local))
			b.Src, b.Dst = append(b.Src, from), append(b.Dst, w.page(layer, plane, p.Local))
		}
	}
	return w.stream.Submit(ctx, b)
}

// check returns an error if the request's pages do not have the contents of the layer.
func (w *worker) check(ctx context.Context, layer int) error {
	b := new(mem.Batch)
	for plane := range 2 {
		for i, p := range pairs {
			b.Src, b.Dst = append(b.Src, w.page(layer, plane, p.Remote)), append(b.Dst, w.onHost(layer, plane, i))
		}
	}
	ticket, err := w.stream.Submit(ctx, b)
	if err == nil {
		err = ticket.Wait(ctx)
	}
	if err != nil {
		return err
	}
	for plane := range 2 {
		for i, p := range pairs {
			if !bytes.Equal(w.bytes(w.onHost(layer, plane, i)), want(layer, plane, p.Local)) {
				return fmt.Errorf("layer %d has wrong bytes", layer)
			}
		}
	}
	return nil
}

// prefill computes the layers and sends each of them to the decode process.
func prefill(ctx context.Context, driver kvlane.Driver) (err error) {
	other := exec.CommandContext(ctx, os.Args[0], "-device", string(driver), "decode")
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
	w, err := open(ctx, driver)
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
		ticket, err := w.compute(ctx, k)
		if err == nil {
			// the transfer starts after the computation; this call does not wait for it
			err = request.Layer(ctx, k, ticket)
		}
		if err != nil {
			return errors.Join(err, request.Finish(ctx))
		}
	}
	if err := request.Finish(ctx); err != nil {
		return err
	}
	for _, p := range w.transfer.Stats().Paths {
		if p.Bytes > 0 {
			fmt.Fprintf(os.Stdout, "request 1: %d bytes transferred by %s\n", p.Bytes, p.Path)
		}
	}
	for line, err := lines.ReadString('\n'); err == nil; line, err = lines.ReadString('\n') {
		fmt.Fprint(os.Stdout, line)
	}
	return other.Wait()
}

// decode serves its pages and waits for the layers of a request.
func decode(ctx context.Context, driver kvlane.Driver) (err error) {
	w, err := open(ctx, driver)
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
		if err := w.check(ctx, got.Layer); err != nil {
			return fmt.Errorf("%s: %w", got.Request, err)
		}
		fmt.Fprintf(os.Stdout, "%s: layer %d of %d is in its pages\n", got.Request, got.Layer, got.Layers)
		if got.Complete {
			fmt.Fprintf(os.Stdout, "%s: decoding can begin\n", got.Request)
			return nil
		}
	}
}
