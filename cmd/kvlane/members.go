package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/metadata"
	"github.com/kvlane/kvlane/metadata/etcd"
)

// etcdNames are the flags of etcd's credentials.
var etcdNames = []string{"etcd-ca", "etcd-cert", "etcd-key", "etcd-user", "etcd-password"}

// etcdFlags are the credentials for etcd. They are the scheme etcd of metadata.OpenMembers.
type etcdFlags struct {
	tls                auth.ClientOptions
	user, passwordFile string
}

var _ metadata.Scheme = (*etcdFlags)(nil)

func (f *etcdFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.tls.CAFile, "etcd-ca", "", "PEM file of authorities of etcd's certificates; enables TLS")
	fl.StringVar(&f.tls.CertFile, "etcd-cert", "", "PEM file of the client's certificate for etcd")
	fl.StringVar(&f.tls.KeyFile, "etcd-key", "", "PEM file of its private key")
	fl.StringVar(&f.user, "etcd-user", "", "user of etcd")
	fl.StringVar(&f.passwordFile, "etcd-password", "", "file with the password of --etcd-user")
}

// with returns a context in which lists may be in etcd.
func (f *etcdFlags) with(ctx context.Context) context.Context {
	return metadata.WithScheme(ctx, etcd.Scheme, f)
}

// addTo adds the credentials to options.
func (f *etcdFlags) addTo(o *etcd.Options) error {
	c, err := auth.NewClient(f.tls)
	if err != nil {
		return asUsage(fmt.Errorf("credentials for etcd: %w", err))
	}
	if len(o.Endpoints) > 0 {
		if o.TLS = c.TLS(o.Endpoints[0]); o.TLS != nil {
			o.TLS.ServerName = "" // each endpoint has its own
		}
	}
	if o.User = f.user; f.passwordFile != "" {
		b, err := os.ReadFile(f.passwordFile)
		if err != nil {
			return fmt.Errorf("read --etcd-password: %w", err)
		}
		o.Password = string(bytes.TrimRight(b, "\r\n"))
	}
	return asUsage(o.Validate())
}

// Check implements metadata.Scheme.
func (f *etcdFlags) Check(url string) error {
	_, err := etcd.ParseURL(url)
	return err
}

// Open implements metadata.Scheme.
func (f *etcdFlags) Open(ctx context.Context, url string) (metadata.OpenedMembers, error) {
	o, err := f.optionsOf(url)
	if err != nil {
		return nil, err
	}
	return etcd.Open(ctx, o)
}

// optionsOf returns the options of a URL, with the credentials.
func (f *etcdFlags) optionsOf(url string) (etcd.Options, error) {
	o, err := etcd.ParseURL(url)
	if err != nil {
		return o, asUsage(err)
	}
	return o, f.addTo(&o)
}

// memberFlags register a block server.
type memberFlags struct {
	endpoints, cluster, advertise, zone string
	weight                              int
	drain                               time.Duration
	etcd                                etcdFlags
	view                                clusterView
}

// memberNames are the flags that --etcd needs to have an effect.
var memberNames = append([]string{"cluster", "advertise", "weight", "drain"}, etcdNames...)

func (f *memberFlags) register(fl *pflag.FlagSet) {
	fl.StringVar(&f.endpoints, "etcd", "", "HOST:PORT,... of etcd; the server registers there, for clients with --remote etcd://HOST:PORT,.../CLUSTER")
	fl.StringVar(&f.cluster, "cluster", "kvlane", "name of the cluster")
	fl.StringVar(&f.advertise, "advertise", "", "HOST:PORT by which clients reach the server, and the name of the member; by default the address that it listens on")
	fl.StringVar(&f.zone, "zone", "", "zone of the server; clients of the same zone prefer it")
	fl.IntVar(&f.weight, "weight", 1, "share of the runs relative to other servers, 1 to 65536")
	fl.DurationVar(&f.drain, "drain", 5*time.Second, "time between the mark that the server drains and its end")
	f.etcd.register(fl)
}

// options returns the options of etcd.
func (f *memberFlags) options() (etcd.Options, error) {
	if f.endpoints == "" {
		return etcd.Options{}, nil
	}
	if f.drain < 0 {
		return etcd.Options{}, usagef("--drain must not be negative")
	}
	o := etcd.Options{Endpoints: strings.Split(f.endpoints, ","), Cluster: f.cluster}
	return o, f.etcd.addTo(&o)
}

// join registers the server that listens at an address. It returns a function that marks the member
// as draining, waits for --drain, and ends the registration. Without --etcd it does nothing.
func (f *memberFlags) join(ctx context.Context, o etcd.Options, at net.Addr, boot [16]byte) (leave func(), err error) {
	if f.endpoints == "" {
		return func() {}, nil
	}
	name := cmp.Or(f.advertise, at.String())
	if host, _, err := net.SplitHostPort(name); err == nil && net.ParseIP(host).IsUnspecified() {
		return nil, usagef("%s is no address of one host: give --advertise HOST:PORT", name)
	}
	m := metadata.Member{Name: name, Address: name, Weight: f.weight, Zone: f.zone, Boot: boot, Joined: time.Now()}
	r, err := etcd.Register(ctx, o, m)
	if err != nil {
		return nil, asUsage(err)
	}
	if err := r.Err(); err != nil {
		slog.Warn("the server is not registered yet, and tries again", "error", err)
	}
	f.view.follow(ctx, o)
	metricsOf(ctx).AddTable(f.view.table)
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.drain+interruptGrace)
		defer cancel()
		if err := r.Drain(ctx); err != nil {
			slog.Warn("clients do not see that the server drains", "error", err)
		}
		time.Sleep(f.drain) // a second interruption ends the process
		if err := r.Close(ctx); err != nil {
			slog.Warn("the server leaves when its lease ends", "error", err)
		}
	}, nil
}

// completeMembers offers the forms of member lists.
func completeMembers(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{etcd.Scheme + "://", "dns+srv://_"}, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}
