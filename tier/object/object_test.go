package object_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/breaker"
	"github.com/kvlane/kvlane/internal/s3test"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/faulty"
	"github.com/kvlane/kvlane/tier/object"
	"github.com/kvlane/kvlane/tier/tiertest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// config returns a configuration for a server. Each prefix has its own blocks.
func config(endpoint, prefix string, f block.Format) object.Config {
	return object.Config{
		URL: "s3://" + s3test.Bucket + "/" + prefix, Endpoint: endpoint, Formats: block.Formats{f}, Timeout: testkit.Patience() / 4,
		Breaker: breaker.Options{Failures: 2, Delay: 10e6, MaxDelay: 20e6},
	}
}

func open(tb testing.TB, c object.Config) *object.Tier {
	tb.Helper()
	tr, err := object.Open(tb.Context(), c)
	must(tb, err)
	if len(tr.Notes()) > 0 {
		tb.Log(tr.Notes())
	}
	tb.Cleanup(func() { must(tb, tr.Close(context.Background())) })
	return tr
}

func TestConformance(t *testing.T) {
	for _, name := range []string{"versitygw", "moto"} {
		t.Run(name, func(t *testing.T) {
			s3test.Setenv(t)
			s := s3test.Start(t, name)
			t.Run("plain", func(t *testing.T) { conform(t, s, func(tr tier.Tier) tier.Tier { return tr }) })
			if name == "versitygw" {
				t.Run("decorated", func(t *testing.T) { conform(t, s, func(tr tier.Tier) tier.Tier { return faulty.New(tr, nil, nil) }) })
			}
		})
	}
}

func conform(t *testing.T, s *s3test.Server, wrap func(tier.Tier) tier.Tier) {
	f := tiertest.NewFormat(t)
	of := make(map[tier.Tier]object.Config)
	start := func(t *testing.T, c object.Config) tier.Tier {
		tr, err := object.Open(t.Context(), c)
		must(t, err)
		if len(tr.Notes()) > 0 {
			t.Fatal(tr.Notes())
		}
		w := wrap(tr)
		of[w] = c
		return w
	}
	n := 0
	tiertest.Run(t, tiertest.Config{
		Format: f,
		Open: func(t *testing.T, _ int) tier.Tier {
			n++
			return start(t, config(s.URL(), fmt.Sprintf("%s/%d", t.Name(), n), f))
		},
		Corrupt: func(t *testing.T, tr tier.Tier, key block.Key) { must(t, object.Damage(t.Context(), of[tr], key)) },
		Reopen: func(t *testing.T, tr tier.Tier) tier.Tier {
			must(t, tr.Close(context.WithoutCancel(t.Context())))
			return start(t, of[tr])
		},
	})
}

func TestEvents(t *testing.T) {
	s3test.Setenv(t)
	s := s3test.Start(t, "versitygw")
	f, events := tiertest.NewFormat(t), new(tier.Events)
	c := config(s.URL(), t.Name(), f)
	c.Events = events
	tiertest.CheckEvents(t, open(t, c), events, f, func(key block.Key) { must(t, object.Damage(t.Context(), c, key)) })
}
