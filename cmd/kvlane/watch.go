package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/internal/journal"
	"github.com/kvlane/kvlane/internal/statuspage"
	"github.com/kvlane/kvlane/telemetry"
	"github.com/kvlane/kvlane/telemetry/profiles"
)

// watchFlags select where metrics and profiles are served while a command runs.
type watchFlags struct {
	metricsAddr, pprofAddr string
	warnings               journal.Journal // for the status page
}

func (f *watchFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.metricsAddr, "metrics-addr", "", usageOf("metrics-addr"))
	flags.StringVar(&f.pprofAddr, "pprof-addr", "", usageOf("pprof-addr"))
}

// around wraps every command below cmd, so that metrics and profiles are served while it runs.
func (f *watchFlags) around(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		f.around(c)
		inner := c.RunE
		c.RunE = func(cmd *cobra.Command, args []string) (err error) {
			ctx, stop, err := f.serve(cmd.Context(), changedFlags(cmd))
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, stop()) }()
			cmd.SetContext(ctx)
			return inner(cmd, args)
		}
	}
}

// serve starts the servers that the flags select. They run until stop is called, also after the end
// of ctx, while the command closes what it has open. The returned context has the served metrics.
func (f *watchFlags) serve(ctx context.Context, config []statuspage.Setting) (_ context.Context, stop func() error, err error) {
	running := context.WithoutCancel(ctx)
	var open []*telemetry.Server
	stop = func() error {
		var errs []error
		for _, s := range open {
			errs = append(errs, s.Close())
		}
		return errors.Join(errs...)
	}
	if f.metricsAddr != "" {
		if err := telemetry.CheckAddr(f.metricsAddr); err != nil {
			return nil, nil, usagef("--metrics-addr: %w", err)
		}
		m := metricsOf(ctx)
		m.SetConfig(config)
		m.AddJournal(&f.warnings)
		ctx = withMetrics(ctx, m)
		s, err := m.Serve(running, f.metricsAddr)
		if err != nil {
			return nil, nil, err
		}
		open = append(open, s)
		slog.Info("serving metrics", "url", s.URL()+"/metrics")
	}
	if f.pprofAddr != "" {
		s, err := profiles.Serve(running, f.pprofAddr)
		if err != nil {
			return nil, nil, asUsage(errors.Join(err, stop()))
		}
		open = append(open, s)
		slog.Info("serving profiles", "url", s.URL()+"/debug/pprof/")
	}
	return ctx, stop, nil
}

// changedFlags returns the flags of a command that are not at their defaults, for the status page.
func changedFlags(cmd *cobra.Command) []statuspage.Setting {
	all := []statuspage.Setting{{Name: "command", Value: cmd.CommandPath()}}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		all = append(all, statuspage.Setting{Name: f.Name, Value: strings.Trim(f.Value.String(), "[]")})
	})
	return all
}

// warningHandler adds warnings and errors to a journal.
type warningHandler struct {
	slog.Handler
	warnings *journal.Journal
}

// Handle implements slog.Handler.
func (h warningHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		var text []string
		r.Attrs(func(a slog.Attr) bool { text = append(text, a.String()); return true })
		h.warnings.Failed(r.Message, errors.New(strings.Join(text, " ")))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h warningHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warningHandler{h.Handler.WithAttrs(attrs), h.warnings}
}

// WithGroup implements slog.Handler.
func (h warningHandler) WithGroup(name string) slog.Handler {
	return warningHandler{h.Handler.WithGroup(name), h.warnings}
}

type metricsKey struct{}

// withMetrics returns a context with m. Commands add their metrics to it.
func withMetrics(ctx context.Context, m *telemetry.Metrics) context.Context {
	return context.WithValue(ctx, metricsKey{}, m)
}

// metricsOf returns the metrics of the context, or new metrics that are not served.
func metricsOf(ctx context.Context) *telemetry.Metrics {
	if m, ok := ctx.Value(metricsKey{}).(*telemetry.Metrics); ok {
		return m
	}
	return telemetry.New()
}

// notReady makes /readyz fail until isReady is called.
func notReady(ctx context.Context) {
	metricsOf(ctx).SetReady(func() error { return errors.New("the command has not opened the store yet") })
}

func isReady(ctx context.Context) { metricsOf(ctx).SetReady(nil) }
