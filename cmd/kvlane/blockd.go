package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio/server"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/auth"
	"github.com/kvlane/kvlane/internal/blockhost"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/internal/journal"
	"github.com/kvlane/kvlane/internal/limits"
	"github.com/kvlane/kvlane/telemetry"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/object"
)

// blockdFlags are the flags of a block server.
type blockdFlags struct {
	listen                             string
	cacheBytes, tenantBytes, diskBytes int64
	fileDir, logDir, object            string
	maxConnections                     int
	credentials                        auth.ServerOptions
	rdma                               rdmaFlags
	members                            memberFlags
}

func newBlockdCommand() *cobra.Command {
	f := blockdFlags{cacheBytes: 1 << 30, diskBytes: 64 << 30, maxConnections: server.DefaultConnections}
	cmd := &cobra.Command{
		Use:   "blockd",
		Short: "Run a block server",
		Long: `blockd keeps blocks for clients on other machines, in memory and, with --file-dir, --log-dir or --object, on disk or in a bucket. It runs until it is interrupted: then it
refuses new requests, ends those in progress, writes the blocks that are not on disk yet, and exits.

Without client credentials every client has access, so the server listens on loopback addresses only; --insecure permits other addresses. Credentials are
certificates of clients (--tls-client-ca), tokens (--tokens), or both; they need a certificate of the server. The tenant of a client follows from its credential.
Tenants do not see each other's blocks.

Clients with credentials may use RDMA, if this machine has a NIC. A line on standard error names it, or the reason for using sockets only. The bytes that RDMA
moves are not encrypted.

With --etcd the server registers as a member of a cluster. When it is interrupted it marks itself as draining, serves on for --drain, and leaves.`,
		Example: `  kvlane blockd --listen 127.0.0.1:7440 --cache-bytes 64MiB
  kvlane blockd --listen 127.0.0.1:7440 --cache-bytes 64MiB --file-dir /mnt/nvme/blocks --metrics-addr 127.0.0.1:9440`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.listen, "listen", "127.0.0.1:7440", "HOST:PORT to listen on; port 0 is a free port")
	fl.Var(sizeValue{&f.cacheBytes}, "cache-bytes", "memory for blocks of all tenants")
	fl.Var(sizeValue{&f.tenantBytes}, "tenant-bytes", "memory for the blocks of each tenant; 0 is --cache-bytes")
	fl.StringVar(&f.fileDir, "file-dir", "", "directory of blocks, one file each, below a directory for each tenant and identity")
	fl.StringVar(&f.logDir, "log-dir", "", "the same with a log for each identity")
	fl.Var(sizeValue{&f.diskBytes}, "disk-bytes", "bytes on disk of each tenant; with --log-dir its eight identities at most have an eighth each")
	fl.StringVar(&f.object, "object", "", "bucket for blocks instead of a disk, s3://BUCKET/PREFIX, with a folder for each tenant")
	fl.IntVar(&f.maxConnections, "max-connections", f.maxConnections, "connections of clients at a time; if clients have credentials, a tenant has at most three times as many as are free")
	registerSettings(fl, bucketFlags...)
	registerServerCredentials(fl, &f.credentials)
	f.rdma.registerNICs(fl)
	f.members.register(fl)
	cmd.MarkFlagsMutuallyExclusive("file-dir", "log-dir", "object")
	return cmd
}

// run serves until the command's context ends. An interruption is not an error.
func (f *blockdFlags) run(cmd *cobra.Command) (err error) {
	ctx := cmd.Context()
	m := metricsOf(ctx)
	m.SetReady(func() error { return errors.New("the block server does not listen yet") })
	if f.object != "" {
		if _, _, err := object.ParseURL(f.object); err != nil {
			return asUsage(err)
		}
	}
	if f.cacheBytes <= 0 || f.tenantBytes < 0 || f.diskBytes <= 0 {
		return usagef("--cache-bytes and --disk-bytes must be positive, --tenant-bytes not negative")
	}
	if f.maxConnections <= 0 {
		return usagef("--max-connections must be positive")
	}
	if err := limits.Read(os.DirFS("/")).CheckMemory(f.cacheBytes); err != nil {
		return &usageError{fmt.Errorf("--cache-bytes: %w", err)}
	}
	directory, err := f.members.options()
	if err != nil {
		return err
	}
	f.credentials.OnTokensError = warnTokens
	credentials, err := auth.NewServer(f.credentials)
	if err != nil {
		return asUsage(err)
	}
	unlock, err := f.lockRoot()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	host, err := blockhost.New(blockhost.Options{CapacityBytes: f.cacheBytes, TenantBytes: f.tenantBytes, Quota: credentials.QuotaBytes, Disk: f.disk(ctx, accessOf(cmd))})
	if err != nil {
		return asUsage(err)
	}
	defer func() { err = errors.Join(err, closeWithin(ctx, host.Close)) }()
	r, err := f.openRDMA(cmd, credentials.Authenticates())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	s, err := server.New(server.Options{Host: host, Auth: credentials, RDMA: r.gateway, Connections: f.maxConnections, Epoch: f.members.view.epoch, Zone: f.members.zone, Journal: newJournal(m)})
	if err != nil {
		return asUsage(err)
	}
	defer func() { err = errors.Join(err, closeWithin(ctx, s.Close)) }()
	defer f.members.view.close()
	at, err := s.Listen(ctx, f.listen)
	if err != nil {
		return asUsage(err)
	}
	if a, ok := at.(*net.TCPAddr); ok && !a.IP.IsLoopback() && !credentials.Authenticates() {
		slog.Warn("every host that reaches the address can read, write and delete all blocks", "address", at.String())
	}
	m.SetBlockServer(func() telemetry.BlockServer {
		return telemetry.BlockServer{Server: s.Stats(), RDMA: r.stats(), CapacityBytes: f.cacheBytes, Identities: host.Spaces(), Tenants: host.Usages()}
	})
	r.export(m)
	defer m.SetBlockServer(nil)
	leave, err := f.members.join(ctx, directory, at, s.Boot())
	if err != nil {
		return err
	}
	out := newLineWriter(cmd.OutOrStdout())
	_ = out.print(ctx, "block server %s; interrupt to end\n", at) // it fails only if ctx has ended
	isReady(ctx)
	<-ctx.Done()
	m.SetReady(func() error { return fmt.Errorf("the block server drains: %w", errdefs.ErrClosed) })
	leave()
	if drained := closeWithin(ctx, s.Drain); drained != nil {
		slog.Warn("requests end with their connections", "error", drained)
	}
	t := s.Stats()
	if t.Full > 0 {
		slog.Warn("connections were refused: raise --max-connections, or use fewer clients", "connections", t.Full)
	}
	return out.close("%d requests of %d connections, %d by RDMA, %d refused, %d denied\n", t.Requests, t.Accepted, r.requests(), t.Refused, t.Denied)
}

// warnTokens logs that a changed file of tokens is not used.
func warnTokens(err error) {
	slog.Warn("the file of tokens cannot be read: earlier tokens stay valid", "error", err)
}

// logDisk logs evictions from a tenant's disk and failed writes.
func logDisk(r blockhost.DiskReport) {
	switch {
	case r.Err != nil:
		slog.Warn("blocks were not written to disk: they stay in memory until they are evicted", "tenant", r.Tenant, "blocks", r.Failed, "error", r.Err)
	case r.Full != nil:
		slog.Warn("the disk is full: new blocks replace old ones", "tenant", r.Tenant, "evicted", r.Evicted, "error", r.Full)
	default:
		slog.Info("blocks were evicted from disk: the bound is reached", "tenant", r.Tenant, "evicted", r.Evicted)
	}
}

// newJournal returns a journal that m shows on the status page.
func newJournal(m *telemetry.Metrics) *journal.Journal {
	j := new(journal.Journal)
	m.AddJournal(j)
	return j
}

// closeWithin calls end with a context that is limited by closeTimeout.
func closeWithin(ctx context.Context, end func(context.Context) error) error {
	ctx, cancel := closing(ctx, closeTimeout, interruptGrace)
	defer cancel()
	return end(ctx)
}

// logIdentities is the number of identities of a tenant with --log-dir, which share its bound. It is
// enough for the ranks of a model on eight GPUs.
const logIdentities = 8

// root returns the directory of blocks, or "".
func (f *blockdFlags) root() string { return cmp.Or(f.fileDir, f.logDir) }

// lockRoot locks the directory of blocks, if there is one, until unlock is called.
func (f *blockdFlags) lockRoot() (unlock func() error, err error) {
	root := f.root()
	if root == "" {
		return func() error { return nil }, nil
	}
	return blockhost.LockRoot(root, fmt.Sprintf("process %d with --listen %s", os.Getpid(), f.listen))
}

// disk returns the disk that the flags select, or nil.
func (f *blockdFlags) disk(ctx context.Context, bucket bucketAccess) *blockhost.Disk {
	if f.object != "" {
		return &blockhost.Disk{Report: logDisk, Open: func(ctx context.Context, dir string, format block.Format) (tier.Tier, error) {
			c := bucket.config(f.object + "/" + filepath.Dir(dir))
			c.Formats, c.Timeout = block.Formats{format}, 0
			return object.Open(ctx, c)
		}}
	}
	fsys := dirfs.Of(ctx)
	root := f.root()
	if root == "" {
		return nil
	}
	d := &blockhost.Disk{Root: root, TenantBytes: f.diskBytes, Report: logDisk}
	open := new(file.OpenFolders)
	d.Open = func(ctx context.Context, dir string, format block.Format) (tier.Tier, error) {
		c := file.Config{Dirs: []string{dir}, SharedBound: true, OpenFolders: open, Formats: block.Formats{format}, Fsync: file.FsyncFile, MaxBytes: f.diskBytes, FS: fsys}
		return c.OpenTier(ctx)
	}
	if f.logDir != "" {
		d.Identities = logIdentities
		d.Open = func(ctx context.Context, dir string, format block.Format) (tier.Tier, error) {
			return log.Open(ctx, log.Config{Dir: dir, Formats: block.Formats{format}, Fsync: log.FsyncAlways, MaxBytes: f.diskBytes / logIdentities, FS: fsys})
		}
	}
	return d
}
