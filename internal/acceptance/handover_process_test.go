package acceptance_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device"
	"github.com/kvlane/kvlane/device/cuda/cudatest"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/transfer"
)

// prefillEnv makes the test binary run as the prefill process.
const prefillEnv = "KVLANE_TEST_PREFILL"

// side is the engine of one process with a KV cache that other processes can import.
type side struct {
	model    block.Geometry
	pages    int
	engine   *kvlane.Engine
	kv, host *mem.Region // all planes, one after another; pinned memory for one layer
	cache    *kvlane.Cache
	stream   stream.EventStream
	transfer *kvlane.Transfer
}

// openSide opens an engine: a small model on the simulated device, or 1 GiB of the KV of Llama 3.1
// 8B on a GPU.
func openSide(ctx context.Context, driver kvlane.Driver, sockets string) (s *side, err error) {
	s = &side{pages: 64, model: block.Geometry{Model: "test", Layers: 6, KVHeads: 2, HeadSize: 64, DType: "bfloat16", BlockTokens: 16, TPSize: 1}}
	if driver == kvlane.CUDA {
		s.pages, s.model.Layers, s.model.KVHeads, s.model.HeadSize = 512, 32, 8, 128
	}
	planes := int64(s.model.PlanesPerLayer() * s.model.Layers)
	c := kvlane.Config{Model: s.model, Device: kvlane.DeviceConfig{Driver: driver}}
	c.Store = kvlane.StoreConfig{Pipeline: "cache", CacheBytes: 8 * planes * s.model.PlaneBytes()}
	c.Stream.Calibration = profile.Never
	if s.engine, err = kvlane.Open(ctx, c); err != nil {
		return nil, err
	}
	if s.kv, err = s.engine.Device().Alloc(planes*s.planeBytes(), device.AllocOptions{Shareable: true}); err != nil {
		return nil, err
	}
	if s.host, err = s.engine.Device().AllocHost(int64(s.model.PlanesPerLayer()) * s.planeBytes()); err != nil {
		return nil, err
	}
	m := kvlane.CacheMemory{Pages: s.pages, PageBytes: s.model.PlaneBytes()}
	for p := range planes {
		m.Planes = append(m.Planes, s.kv.Dev()+mem.DevAddr(p*s.planeBytes()))
	}
	if s.cache, err = s.engine.RegisterCache(m); err != nil {
		return nil, err
	}
	if s.stream, err = s.engine.OpenStream(); err != nil {
		return nil, err
	}
	s.transfer, err = s.engine.OpenTransfer(ctx, kvlane.TransferConfig{SocketDir: sockets})
	return s, err
}

func (s *side) close(ctx context.Context) error {
	d := s.engine.Device()
	return errors.Join(s.transfer.Close(ctx), s.stream.Close(ctx), s.cache.Close(ctx), d.Free(s.kv), d.Free(s.host), s.engine.Close(ctx))
}

func (s *side) planeBytes() int64 { return int64(s.pages) * s.model.PlaneBytes() }

// layer returns the memory of a layer's planes.
func (s *side) layer(k int) mem.Extent {
	return mem.Extent{Region: s.kv, Off: int64(k) * s.host.Len(), Len: s.host.Len()}
}

// kvPage fills b with the content of a page of a request.
func kvPage(b []byte, request uint64, layer, plane, page int) {
	seed := request<<56 | uint64(layer)<<44 | uint64(plane)<<40 | uint64(page)<<20
	for i := range len(b) / 8 {
		binary.LittleEndian.PutUint64(b[i*8:], device.Mix64(seed+uint64(i)))
	}
}

// pairs returns n pages of a request with different destinations. Source and destination numbers
// differ in most pairs.
func (s *side) pairs(n int) (all []kvlane.PagePair) {
	for i := range n {
		all = append(all, kvlane.PagePair{Local: uint32(i), Remote: uint32((5*i + 3) % s.pages)})
	}
	return all
}

// compute writes the KV of a layer of a request. The ticket is done when the layer is written.
func (s *side) compute(ctx context.Context, request uint64, k int) (*stream.Ticket, error) {
	b := s.host.Bytes()
	n := int(s.model.PlaneBytes())
	for i := range len(b) / n {
		kvPage(b[i*n:][:n], request, k, i/s.pages, i%s.pages)
	}
	return s.stream.Submit(ctx, &mem.Batch{Dst: []mem.Extent{s.layer(k)}, Src: []mem.Extent{mem.All(s.host)}})
}

// check checks n pages of a request in all layers, and that all other pages are zero.
func (s *side) check(ctx context.Context, request uint64, n int) error {
	size := int(s.model.PlaneBytes())
	want := make([]byte, s.host.Len())
	for k := range s.model.Layers {
		ticket, err := s.stream.Submit(ctx, &mem.Batch{Dst: []mem.Extent{mem.All(s.host)}, Src: []mem.Extent{s.layer(k)}})
		if err != nil {
			return err
		}
		for i := range s.model.PlanesPerLayer() {
			for _, p := range s.pairs(n) {
				kvPage(want[i*s.pages*size+int(p.Remote)*size:][:size], request, k, i, int(p.Local))
			}
		}
		if err := ticket.Wait(ctx); err != nil {
			return err
		}
		for i := 0; i < len(want); i += size {
			if !bytes.Equal(s.host.Bytes()[i:][:size], want[i:][:size]) {
				return fmt.Errorf("layer %d plane %d page %d has wrong bytes", k, i/size/s.pages, i/size%s.pages)
			}
		}
	}
	return nil
}

// handoverResult is the prefill process's result of a request.
type handoverResult struct {
	Err      string
	Bytes    int64 // bytes of the request
	Duration time.Duration
	Paths    map[string]int64 // bytes of all requests so far, by path
	Notes    []string
}

// never is a dependency that is never done.
type never struct{}

func (never) Done() <-chan struct{} { return nil }
func (never) Err() error            { return nil }

// playPrefill runs the prefill process. It hands requests over to the segment. Each line of its
// input starts a request and gives its kind.
func playPrefill(driver kvlane.Driver, segment, sockets string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*hostPatience)
	defer cancel()
	s, err := openSide(ctx, driver, sockets)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	to, err := s.transfer.Connect(ctx, segment, s.cache)
	if err != nil {
		return err
	}
	in, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	for request := uint64(1); in.Scan(); request++ {
		result, err := s.prefill(ctx, to, request, in.Text())
		if err != nil {
			result.Err = err.Error()
		}
		result.Paths, result.Notes = make(map[string]int64), s.transfer.Notes()
		for _, p := range s.transfer.Stats().Paths {
			result.Paths[p.Path.String()] = p.Bytes
		}
		if err := out.Encode(result); err != nil {
			return err
		}
	}
	return in.Err()
}

// prefill hands a request over. "computing" sends half of the pages, each layer after the work that
// computes it; other kinds send all pages of computed layers. "fails" and "hangs" send only half of
// the layers.
func (s *side) prefill(ctx context.Context, to *kvlane.Receiver, number uint64, what string) (result handoverResult, err error) {
	pairs, layers := s.pairs(s.pages), s.model.Layers
	switch what {
	case "computing":
		pairs = s.pairs(s.pages / 2)
	case "fails", "hangs":
		layers /= 2
	}
	if what == "there" {
		for k := range layers {
			ticket, err := s.compute(ctx, number, k)
			if err == nil {
				err = ticket.Wait(ctx)
			}
			if err != nil {
				return result, err
			}
		}
	}
	result.Bytes = int64(len(pairs)*layers*s.model.PlanesPerLayer()) * s.model.PlaneBytes()
	begin := time.Now()
	r, err := to.Begin([]byte(what), pairs)
	if err != nil {
		return result, err
	}
	var before *stream.Ticket // reads the memory that the next layer is computed into
	for k := range layers {
		var after []mem.Dependency
		if what == "computing" {
			if before != nil {
				err = before.Wait(ctx)
			}
			if err == nil {
				before, err = s.compute(ctx, number, k)
			}
			after = append(after, before)
		}
		if err == nil {
			err = r.Layer(ctx, k, after...)
		}
		if err != nil {
			return result, errors.Join(err, r.Finish(ctx))
		}
	}
	if what == "hangs" {
		return result, r.Layer(ctx, layers, never{})
	}
	err = r.Finish(ctx)
	result.Duration = time.Since(begin)
	return result, err
}

// prefiller controls the prefill process.
type prefiller struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *json.Decoder
	do  func(what string)
}

func startPrefill(t *testing.T, driver kvlane.Driver, segment string) *prefiller {
	t.Helper()
	p := &prefiller{t: t, cmd: exec.CommandContext(context.Background(), "/proc/self/exe", string(driver), segment, t.TempDir()+"/s")}
	p.cmd.Env = append(os.Environ(), prefillEnv+"=1")
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.in = json.NewDecoder(out)
	p.do = func(what string) {
		t.Helper()
		if _, err := fmt.Fprintln(in, what); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(p.kill)
	return p
}

func (p *prefiller) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

func (p *prefiller) result() (s handoverResult) {
	p.t.Helper()
	if err := p.in.Decode(&s); err != nil {
		p.t.Fatalf("the prefill process printed nothing: %v", err)
	}
	return s
}

// TestHandoverBetweenProcesses hands the KV of requests over from one process to another, layer by
// layer, through imported memory.
func TestHandoverBetweenProcesses(t *testing.T) { handoverBetween(t, kvlane.Sim) }

// TestGPUHandover does the same with both processes on one GPU, and logs the rate.
func TestGPUHandover(t *testing.T) {
	cudatest.Open(t)
	handoverBetween(t, kvlane.CUDA)
}

func handoverBetween(t *testing.T, driver kvlane.Driver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*hostPatience)
	defer cancel()
	s, err := openSide(ctx, driver, t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hostPatience)
		defer cancel()
		if err := s.close(ctx); err != nil {
			t.Error(err)
		}
	})
	s.clear(ctx, t)
	if err := s.transfer.Offer(ctx, "decode", s.cache); err != nil {
		t.Fatal(err)
	}
	other := startPrefill(t, driver, s.transfer.Address()+"/decode")
	var sum int64
	for i, what := range []string{"computing", "there", "there"} {
		other.do(what)
		s.wantEvents(ctx, t, what)
		result := other.result()
		if result.Err != "" || len(result.Notes) > 0 {
			t.Fatalf("request %d: %s, notes %q", i, result.Err, result.Notes)
		}
		sum += result.Bytes
		for path, n := range result.Paths {
			if want := map[string]int64{transfer.PathNVLink.String(): sum}[path]; n != want {
				t.Errorf("request %d: %d bytes used path %s, want %d", i, n, path, want)
			}
		}
		pages := s.pages
		if what == "computing" {
			pages /= 2
		}
		if err := s.check(ctx, uint64(i+1), pages); err != nil {
			t.Fatalf("request %d, %s: %v", i, what, err)
		}
		t.Logf("%s: %d layers of %d pages, %d bytes in %v: %.1f GB/s", what, s.model.Layers, pages, result.Bytes, result.Duration,
			float64(result.Bytes)/float64(result.Duration.Nanoseconds()))
	}
	s.wantFailures(ctx, t, other)
	if err := s.transfer.Close(ctx); err != nil {
		t.Fatal(err)
	}
	s.clear(ctx, t) // the receiver may reuse the pages
	time.Sleep(hostGlance)
	if err := s.check(ctx, 0, 0); err != nil {
		t.Errorf("a killed process has written: %v", err)
	}
}

// clear sets all pages to zero.
func (s *side) clear(ctx context.Context, t *testing.T) {
	t.Helper()
	q, err := s.engine.Device().OpenQueue(device.QueueOptions{})
	if err == nil {
		err = errors.Join(q.Fill(mem.All(s.kv), 0), q.Close(ctx))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// wantEvents checks the events of every layer of a request and of its end.
func (s *side) wantEvents(ctx context.Context, t *testing.T, what string) {
	t.Helper()
	seen := make(map[int]bool)
	for {
		e, err := s.transfer.Receive(ctx)
		if err != nil {
			t.Fatalf("%s: after layers %v: %v", what, seen, err)
		}
		seen[e.Layer] = true
		if string(e.Request) != what || e.Failed || e.Complete != (len(seen) == s.model.Layers) {
			t.Fatalf("%s: after layers %v: %+v", what, seen, e)
		}
		if e.Complete {
			return
		}
	}
}

// wantFailures checks that a failed request is reported as failed, and that a request whose sender
// was killed is never reported as complete.
func (s *side) wantFailures(ctx context.Context, t *testing.T, other *prefiller) {
	t.Helper()
	other.do("fails")
	for {
		e, err := s.transfer.Receive(ctx)
		if err != nil || e.Complete {
			t.Fatalf("a request that failed: %+v, %v", e, err)
		}
		if e.Failed {
			t.Logf("%s: its pages are undefined", e.Request)
			break
		}
	}
	if result := other.result(); result.Err == "" {
		t.Error("a request without half of its layers succeeded")
	}
	other.do("hangs")
	e, err := s.transfer.Receive(ctx)
	other.kill()
	arrived := 0
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for ; err == nil; e, err = s.transfer.Receive(soon) {
		if arrived++; e.Complete || e.Failed || string(e.Request) != "hangs" {
			t.Errorf("event of a killed sender: %+v", e)
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) || arrived == 0 {
		t.Errorf("after %d layers of a sender that was killed: %v", arrived, err)
	}
	t.Logf("hangs: %d of %d layers had arrived when its sender was killed, and the time for the rest is over", arrived, s.model.Layers)
}
