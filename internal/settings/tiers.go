package settings

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/dirfs"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/cache"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
	"github.com/kvlane/kvlane/tier/object"
	"github.com/kvlane/kvlane/tier/remote"
)

// Tier is a row of Tiers.
type Tier struct {
	Name string
	Doc  string
	// Page is the page in docs with a heading for the tier.
	Page string
	// Shared means that several processes may open the tier. Below its cache, a Manager uses only
	// shared tiers.
	Shared bool
	// Settings are the settings of the tier. Except those of the cache, they require the tier. The
	// first one is its place: directories or servers. A store without a pipeline uses the tiers
	// whose place is set. Keys are keys of fields of kvlane.StoreConfig.
	Settings []Setting
	// New returns an empty configuration of a durable tier. Tier.Config sets its fields that have a
	// tag with a key. New is nil for the cache, which is not durable: devices copy to and from its
	// slots, so it must be the first tier of a pipeline.
	New func(TierBlocks) TierConfig
}

// TierBlocks describes the blocks of a tier and the access to its files. Without Formats, a
// configuration can be neither validated nor opened.
type TierBlocks struct {
	Formats    block.Formats
	Identities []block.Identity
	FS         dirfs.FS       // nil: the operating system's file system
	Direct     dirfs.Direct   // nil: direct storage is not used
	OpenNIC    remote.OpenNIC // nil: block servers use sockets
	Events     *tier.Events   // nil: changes of the contents are not reported
}

// TierConfig is the configuration of a durable tier.
type TierConfig interface {
	// Validate reports all errors. It does not access directories or servers.
	Validate() error
	// OpenTier opens the tier. If the result has a method Notes, its notes are added to the notes
	// of the engine.
	OpenTier(context.Context) (tier.Tier, error)
}

// Tiers lists all tiers, from fast to slow. A store without a pipeline uses this order.
var Tiers = []Tier{
	{
		Name: cache.Name, Doc: "pinned memory, always first", Page: "tiers.md",
		Settings: []Setting{
			{Key: "store.cache_bytes", Name: "cache-bytes", Kind: Size, Doc: "pinned host memory of the cache; without a cache, memory through which blocks pass (then 256 MiB by default)", Default: "required with a cache", Flag: "1GiB", FlagOnly: []string{"bench store", "blockd"}},
		},
	},
	{
		Name: file.Name, Doc: "a file per block", Page: "tiers.md", Shared: true,
		Settings: []Setting{
			{Key: "store.dirs", Name: "file-dir", Kind: Dirs, Doc: "directories of the file tier", Default: "none", Flag: none, FlagOnly: []string{"bench store", "calibrate", "blockd"}},
			{Key: "store.shared_bound", Kind: Bool, Doc: "`file_bytes` and `dir_bytes` bound all folders in the parent directory of each of `dirs`, of all identities and processes", Default: "false"},
			{Key: "store.file_bytes", Name: "file-bytes", Kind: Size, Doc: "bound of the file tier", Default: "none", Flag: "0"},
			{Key: "store.dir_bytes", Name: "file-dir-bytes", Kind: Sizes, Doc: "bounds of single directories, in their order; directories with 0 share the tier's bound", Default: "none", Flag: none},
			{Key: "store.fsync", Name: "fsync", Doc: "when files are synced: `never`, or `file` (each before its block counts as durable)", Default: "never", Words: []string{"never", "file"}},
		},
		New: func(b TierBlocks) TierConfig {
			return &file.Config{Formats: b.Formats, Identities: b.Identities, FS: b.FS, Direct: b.Direct, Events: b.Events}
		},
	},
	{
		Name: log.Name, Doc: "large files, for one process", Page: "tiers.md",
		Settings: []Setting{
			{Key: "store.log_dir", Name: "log-dir", Kind: Dir, Doc: "directory of the log tier, on a local disk, for one process at a time", Default: "none", Flag: none, FlagOnly: []string{"blockd"}},
			{Key: "store.log_bytes", Name: "log-bytes", Kind: Size, Doc: "bound of the log tier", Default: "none", Flag: "0"},
			{Key: "store.log_fsync", Name: "log-fsync", Doc: "when the log is synced: `interval` (ten times a second), `always` (before blocks count as durable) or `never`", Default: "interval", Words: []string{"always", "interval", "never"}},
		},
		New: func(b TierBlocks) TierConfig {
			return &log.Config{Formats: b.Formats, Identities: b.Identities, FS: b.FS, Direct: b.Direct, Events: b.Events}
		},
	},
	{
		Name: remote.Name, Doc: "block servers", Page: "tiers.md", Shared: true,
		Settings: []Setting{
			{Key: "store.remote", Name: "remote", Doc: "block servers, `HOST:PORT[=WEIGHT],...` or `dns+srv://_SERVICE._PROTOCOL.DOMAIN`, and in the command `etcd://HOST:PORT,.../CLUSTER`; all clients of the servers need the same list", Default: "none", Flag: none},
			{Key: "store.remote_timeout_ms", Name: "remote-timeout-ms", Kind: Int, Doc: "time of a request to a block server, after which it is a miss", Default: "1000", Flag: "0"},
			{Key: "store.remote_zone", Name: "remote-zone", Doc: "zone of this process; replicas of hot runs in block servers of the zone are read first", Default: "none", Flag: none},
			{Key: "store.remote_ca", Name: "remote-ca", Doc: "file with the certificates of the authorities of block servers, in PEM; enables TLS", Default: "plain TCP", Flag: none},
			{Key: "store.remote_cert", Name: "remote-cert", Doc: "file with the client's certificate for block servers, in PEM", Default: "none", Flag: none},
			{Key: "store.remote_key", Name: "remote-key", Doc: "file with the private key of `remote_cert`", Default: "none", Flag: none},
			{Key: "store.remote_token", Name: "remote-token", Doc: "file with the client's token for block servers", Default: "none", Flag: none},
			{Key: "store.remote_rdma", Name: "remote-rdma", Kind: Bool, Doc: "block servers access the cache's memory by RDMA, if there is a NIC and they authenticate the client; otherwise sockets", Default: "false"},
		},
		New: func(b TierBlocks) TierConfig {
			return &remote.Config{Formats: b.Formats, OpenNIC: b.OpenNIC, Events: b.Events}
		},
	},
	{
		Name: object.Name, Doc: "a bucket of S3", Page: "tiers.md", Shared: true,
		Settings: []Setting{
			{Key: "store.object", Name: "object", Doc: "bucket of the object tier, `s3://BUCKET/PREFIX`; stores of all identities and hosts may share it", Default: "none", Flag: none, FlagOnly: []string{"blockd"}},
			{Key: "store.object_endpoint", Name: "object-endpoint", Doc: "URL of the bucket's server, such as http://10.0.0.1:9000", Default: "the AWS SDK's", Flag: none},
			{Key: "store.object_region", Name: "object-region", Doc: "region of the bucket", Default: "the AWS SDK's, or us-east-1", Flag: none},
			{Key: "store.object_ca", Name: "object-ca", Doc: "file with authorities of the bucket's server, in PEM", Default: "the system's", Flag: none},
			{Key: "store.object_encryption", Name: "object-encryption", Doc: "encryption at the server: AES256, aws:kms or aws:kms:dsse", Default: "the bucket's", Flag: none},
			{Key: "store.object_kms_key", Name: "object-kms-key", Doc: "KMS key of `object_encryption`", Default: "the bucket's", Flag: none},
			{Key: "store.object_timeout_ms", Name: "object-timeout-ms", Kind: Int, Doc: "time of an operation with its retries, after which it is a miss", Default: "2000", Flag: "0"},
			{Key: "store.object_requests", Name: "object-requests", Kind: Int, Doc: "requests in progress, of reads and of writes each", Default: "64", Flag: "0"},
		},
		New: func(b TierBlocks) TierConfig {
			return &object.Config{Formats: b.Formats, Identities: b.Identities, Events: b.Events}
		},
	},
}

// DurableTiers returns all tiers except the cache.
func DurableTiers() []Tier {
	return slices.DeleteFunc(slices.Clone(Tiers), func(t Tier) bool { return t.New == nil })
}

// TierByName returns the tier with a name, or nil.
func TierByName(name string) *Tier {
	if i := slices.IndexFunc(Tiers, func(t Tier) bool { return t.Name == name }); i >= 0 {
		return &Tiers[i]
	}
	return nil
}

// TierSettings returns the settings of all tiers.
func TierSettings() (all []Setting) {
	for i := range Tiers {
		all = append(all, Tiers[i].Settings...)
	}
	return all
}

// tierDocs returns a text that describes all tiers.
func tierDocs() string {
	var docs []string
	for i := range Tiers {
		docs = append(docs, fmt.Sprintf("`%s` (%s)", Tiers[i].Name, Tiers[i].Doc))
	}
	return strings.Join(docs, ", ")
}

// Place returns the setting for the tier's directories or servers.
func (t *Tier) Place() *Setting { return &t.Settings[0] }

// Names returns the names of the tier's flags.
func (t *Tier) Names() (names []string) {
	for i := range t.Settings {
		if name := t.Settings[i].Name; name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Given reports whether the setting has a non-zero value in store, a pointer to a
// kvlane.StoreConfig.
func (s *Setting) Given(store any) bool { return !s.of(store).IsZero() }

// Value returns the setting's value in store, a pointer to a kvlane.StoreConfig.
func (s *Setting) Value(store any) any { return s.of(store).Interface() }

// of returns the field for the setting in store.
func (s *Setting) of(store any) reflect.Value {
	return field(store, strings.TrimPrefix(s.Key, "store."))
}

// SetDir sets the directory of a tier in store, a pointer to a kvlane.StoreConfig. A tier without
// directories does not change.
func (t *Tier) SetDir(store any, dir string) {
	if !t.Place().IsDir() {
		return
	}
	v := any(dir)
	if t.Place().Kind == Dirs {
		v = []string{dir}
	}
	t.Place().of(store).Set(reflect.ValueOf(v))
}

// Dirs returns the directories of the tier in store, a pointer to a kvlane.StoreConfig.
func (t *Tier) Dirs(store any) []string {
	switch v := t.Place().of(store).Interface().(type) {
	case []string:
		if t.Place().IsDir() {
			return v
		}
	case string:
		if t.Place().IsDir() && v != "" {
			return []string{v}
		}
	}
	return nil
}

// Unbound sets the size limits of the tier in store, a pointer to a kvlane.StoreConfig, to zero.
func (t *Tier) Unbound(store any) {
	for i := range t.Settings {
		if s := &t.Settings[i]; s.Kind == Size || s.Kind == Sizes {
			s.of(store).SetZero()
		}
	}
}

// Config returns the configuration of a durable tier. Fields with a key get their values from
// store, a pointer to a kvlane.StoreConfig.
func (t *Tier) Config(store any, b TierBlocks) TierConfig {
	c := t.New(b)
	to := reflect.ValueOf(c).Elem()
	for i := range to.NumField() {
		if key := to.Type().Field(i).Tag.Get(tag); key != "" {
			to.Field(i).Set(field(store, key))
		}
	}
	return c
}

// ParsePipeline parses a pipeline: names of tiers separated by "|", from fast to slow. Each tier
// may occur once, and the cache must be first. In a pipeline without the cache, blocks are only
// staged in pinned memory. Errors wrap ErrInvalid and contain the invalid tier.
func ParsePipeline(s string) ([]string, error) {
	var known []string
	for i := range Tiers {
		known = append(known, Tiers[i].Name)
	}
	fail := func(format string, args ...any) ([]string, error) {
		return nil, fmt.Errorf("parse pipeline %q: %s; known tiers: %s: %w", s, fmt.Sprintf(format, args...), strings.Join(known, ", "), errdefs.ErrInvalid)
	}
	if strings.TrimSpace(s) == "" {
		return fail("it is empty")
	}
	names := strings.Split(s, "|")
	for i, name := range names {
		name = strings.ToLower(strings.TrimSpace(name))
		at := slices.Index(known, name)
		switch {
		case name == "":
			return fail("tier %d has no name", i+1)
		case at < 0:
			return fail("unknown tier %q", name)
		case slices.Contains(names[:i], name):
			return fail("tier %q is given twice", name)
		case i > 0 && Tiers[at].New == nil:
			return fail("tier %q comes after %q and must be the first: the device copies to and from its slots", name, names[i-1])
		}
		names[i] = name
	}
	return names, nil
}
