package capi_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/internal/capi"
	"github.com/kvlane/kvlane/mem"
)

const (
	layers    = 3
	planes    = 2 * layers
	pages     = 16
	pageBytes = 16 * 64 * 2 // bytes of a page in a plane
	patience  = 600_000     // ms: longer than any expected event takes on any machine
)

// configuration returns the configuration of an engine on the simulated device, with the entries of
// add.
func configuration(tb testing.TB, dir string, add map[string]any) []byte {
	tb.Helper()
	all := map[string]any{
		"model":  map[string]any{"name": "m", "dtype": "bfloat16", "layers": layers, "kv_heads": 1, "head_size": 64, "block_tokens": 16},
		"device": map[string]any{"driver": "sim"},
		"store":  map[string]any{"cache_bytes": 4 << 20, "dirs": []string{dir}},
	}
	for k, v := range add {
		all[k] = v
	}
	b, err := json.Marshal(all)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// program is a program that uses the library, with its KV cache.
type program struct {
	t      testing.TB
	lib    *capi.Library
	engine capi.Handle
	cache  capi.Handle
	e      *kvlane.Engine
	kv     *mem.Region
	host   *mem.Region // copy of kv in host memory
	closed bool
}

// start opens an engine, and closes it when the test ends.
func start(tb testing.TB, lib *capi.Library, config []byte, n int) *program {
	tb.Helper()
	p := &program{t: tb, lib: lib}
	var err error
	p.engine, err = lib.Open(config)
	p.must(err)
	p.e, err = lib.Engine(p.engine)
	p.must(err)
	p.kv, err = p.e.Device().Alloc(int64(n)*planes*pageBytes, device.AllocOptions{})
	p.must(err)
	p.host, err = p.e.Device().AllocHost(p.kv.Len())
	p.must(err)
	m := kvlane.CacheMemory{Pages: n, PageBytes: pageBytes}
	for i := range planes {
		m.Planes = append(m.Planes, p.kv.Dev()+mem.DevAddr(i*n*pageBytes))
	}
	p.cache, err = lib.RegisterCache(p.engine, []kvlane.CacheMemory{m})
	p.must(err)
	tb.Cleanup(p.close)
	return p
}

func (p *program) close() {
	p.t.Helper()
	if p.closed {
		return
	}
	p.closed = true
	p.must(p.lib.CloseCache(p.cache, patience))
	p.must(p.e.Device().Free(p.kv))
	p.must(p.e.Device().Free(p.host))
	p.must(p.lib.Close(p.engine, patience))
}

func (p *program) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// move copies between the KV cache and its copy in host memory.
func (p *program) move(to, from *mem.Region) {
	p.t.Helper()
	ctx := context.Background()
	s, err := p.e.OpenStream()
	p.must(err)
	ticket, err := s.Submit(ctx, &mem.Batch{Dst: []mem.Extent{mem.All(to)}, Src: []mem.Extent{mem.All(from)}})
	p.must(err)
	p.must(ticket.Wait(ctx))
	p.must(s.Close(ctx))
}

// keys returns the keys of n blocks of a prompt.
func (p *program) keys(prompt int64, n int) []kvlane.Key {
	p.t.Helper()
	tokens := make([]int64, 16*n)
	for i := range tokens {
		tokens[i] = prompt + int64(i)
	}
	hashes := make([][block.HashBytes]byte, n)
	p.must(capi.HashTokens(hashes, nil, tokens, 16))
	var flat []byte
	for _, h := range hashes {
		flat = append(flat, h[:]...)
	}
	keys := make([]kvlane.Key, n)
	p.must(p.lib.Keys(p.engine, 0, flat, block.HashBytes, keys))
	return keys
}

// done waits for a task, frees it, and returns the results of its blocks.
func (p *program) done(task capi.Handle, blocks int) []capi.Result {
	p.t.Helper()
	_ = p.lib.Wait(task, capi.Done, patience) // the results contain its error
	results := make([]capi.Result, blocks)
	p.must(p.lib.Results(task, results))
	p.must(p.lib.Free(task))
	return results
}

// dump stores blocks from pages 0, 1, ...
func (p *program) dump(keys []kvlane.Key) {
	p.t.Helper()
	task, err := p.lib.Dump(p.engine, p.cache, keys, upTo(len(keys)), 0, nil)
	p.must(err)
	for i, r := range p.done(task, len(keys)) {
		if r != (capi.Result{}) {
			p.t.Fatalf("block %d: %+v", i, r)
		}
	}
}

func upTo(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

// want checks the status of an error.
func want(tb testing.TB, what string, err error, status capi.Status) {
	tb.Helper()
	if got := capi.StatusOf(err); got != status {
		tb.Errorf("%s: status %d (%v), want %d", what, got, err, status)
	}
}
