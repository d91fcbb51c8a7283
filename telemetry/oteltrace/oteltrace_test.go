package oteltrace_test

import (
	"context"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/mem"
	"github.com/kvlane/kvlane/telemetry/oteltrace"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A dump and a load from files, and a load of a block that nobody has, leave their spans, below
// those of the caller.
func TestSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
	model := kvlane.Geometry{Model: "m", Layers: 2, KVHeads: 1, HeadSize: 64, DType: "bfloat16", BlockTokens: 16, TPSize: 1}
	e, err := kvlane.Open(t.Context(), kvlane.Config{
		Model: model, Device: kvlane.DeviceConfig{Driver: kvlane.Host},
		Store: kvlane.StoreConfig{Pipeline: "file", Dirs: []string{t.TempDir()}, Tracer: oteltrace.New(provider)},
	})
	must(t, err)
	const pages, planes = 2, 4
	kv, err := e.Device().AllocHost(planes * pages * model.PlaneBytes())
	must(t, err)
	m := kvlane.CacheMemory{Pages: pages, PageBytes: model.PlaneBytes()}
	for plane := range planes {
		m.Planes = append(m.Planes, kv.Dev()+mem.DevAddr(int64(plane)*pages*m.PageBytes))
	}
	cache, err := e.RegisterCache(m)
	must(t, err)

	ctx, request := provider.Tracer("engine").Start(t.Context(), "request")
	keys := []kvlane.Key{e.Key([]byte("a")), e.Key([]byte("b"))}
	dump, err := e.Dump(ctx, cache, []kvlane.Ref{{Key: keys[0], Page: 0}, {Key: keys[1], Page: 1}}, kvlane.DumpOptions{})
	must(t, err)
	must(t, dump.Durable(t.Context()))
	lease, err := e.LeasePrefix(ctx, keys, time.Minute)
	must(t, err)
	load, err := e.Load(ctx, lease, cache, []kvlane.Ref{{Key: keys[0], Page: 1}}, kvlane.LoadOptions{})
	must(t, err)
	must(t, load.Wait(t.Context()))
	lease.Release()
	absent, err := e.Load(ctx, nil, cache, []kvlane.Ref{{Key: e.Key([]byte("c")), Page: 1}}, kvlane.LoadOptions{})
	must(t, err)
	if absent.Wait(t.Context()) == nil {
		t.Error("an absent block was loaded")
	}
	request.End()
	must(t, cache.Close(context.Background()))
	must(t, e.Device().Free(kv))
	must(t, e.Close(context.Background()))

	parents := map[string]string{} // by id
	names := map[string]int{}
	for _, s := range spans.Ended() {
		parents[s.SpanContext().SpanID().String()] = s.Name()
	}
	for _, s := range spans.Ended() {
		line := s.Name() + " below " + parents[s.Parent().SpanID().String()]
		for _, a := range s.Attributes() {
			line += " " + string(a.Key) + "=" + a.Value.String()
		}
		names[line+" "+s.Status().Code.String()]++
	}
	for _, want := range []string{
		"kvlane.dump below request kvlane.blocks=2 Unset",
		"kvlane.lease below request kvlane.blocks=2 Unset",
		"kvlane.load below request kvlane.blocks=1 Unset",
		"kvlane.load below request kvlane.blocks=1 Error",
		"kvlane.get below kvlane.load kvlane.blocks=1 kvlane.tier=file Unset",
	} {
		if names[want] != 1 {
			t.Errorf("%d spans %q of\n%v", names[want], want, names)
		}
	}
	if names["kvlane.put below kvlane.dump kvlane.blocks=1 kvlane.tier=file Unset"]+names["kvlane.put below kvlane.dump kvlane.blocks=2 kvlane.tier=file Unset"] == 0 {
		t.Errorf("no puts: %v", names)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
