package kvlane

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/device/sim"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/internal/settings"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// Driver names the kind of device to use: CUDA, Sim or Host.
type Driver string

// The kinds of devices.
const (
	CUDA Driver = "cuda" // a simulated GPU for tests, without the speed of one
	Sim  Driver = "sim"  // a simulated GPU for tests, without the speed of one
	Host Driver = "host" // the CPU, for engines that compute on it; device addresses are host addresses
)

// Config describes an Engine. The zero value of every field but Model and Store.CacheBytes is a
// usable default.
type Config struct {
	// ConfigFile names a YAML file in the format of the command line (docs/command-line.md). Open
	// reads zero fields of Config from it, except values that contradict other fields or have no
	// effect with them. A file cannot set Model, Groups and MetricsAddr. Empty: no file.
	ConfigFile string `config:"config"`
	// Model is the shape of the model's KV cache on this rank, for example from block.PresetByName.
	// It defines the block format: a shard for each layer, with K before V.
	Model block.Geometry `config:"model"`
	// Revision is the revision of the model's weights, and Adapter the adapter (LoRA) in use. Both
	// are part of the identity of blocks. Empty: unspecified.
	Revision string `config:"revision"`
	Adapter  string `config:"adapter"`
	// Tenant separates blocks: an engine never finds blocks of another tenant.
	Tenant string `config:"tenant"`
	// Blocks defines the block format if Model cannot, for example for the layers of a pipeline
	// stage or for pages that hold several layers. It replaces the fields above, which must then be
	// empty.
	Blocks *Blocks
	// Groups are the page groups of a hybrid model. They replace Model and Blocks.
	Groups []Group `config:"groups"`

	Device DeviceConfig `config:"device"`
	Stream StreamConfig `config:"stream"`
	Store  StoreConfig  `config:"store"`
	// HostStreams lets the engine adopt streams of the host program (Engine.AdoptStream). Open then
	// allocates all memory of the copy streams, because a driver may block calls that allocate,
	// register or free device memory while a stream of the program waits. Open returns
	// ErrNotSupported if the device cannot adopt streams.
	HostStreams bool `config:"host_streams"`
	// RDMA selects the NICs that Store.GDR uses.
	RDMA gdr.Config `config:"rdma"`
	// MetricsAddr is the address on which the engine serves its metrics, from Open until Close:
	// HOST:PORT, on 127.0.0.1 without a host, or unix:/PATH, a socket of mode 0600. In PATH, {pid}
	// is replaced by the process ID and {rank} by the model's tensor-parallel rank. Open fails if
	// the address is in use. Empty: metrics are not served.
	MetricsAddr string `config:"metrics_addr"`
}

// Blocks defines the identity and the format of blocks.
type Blocks struct {
	// Identity identifies the model and the kind of KV. Blocks of two identities are never mixed.
	Identity block.Identity
	// Layout is the division of a block into shards.
	Layout *block.Layout
}

// Group is a set of a model's layers whose KV has one geometry and one page table, for example the
// layers with full attention, or those with a sliding window. Each group has its own blocks and
// keys (Engine.GroupKey). A slot of the cache holds a block of the largest group, so choose groups
// with blocks of similar size.
type Group struct {
	// Name is part of the identity of the group's blocks.
	Name string `config:"name"`
	// Layers are the indices of the group's layers in the model, in ascending order, from 0. Each
	// layer of the model is in exactly one group.
	Layers []int `config:"layers"`
	// Geometry is the shape of the group's KV cache. Geometry.Layers may be zero: it follows from
	// Layers.
	Geometry block.Geometry `config:"geometry"`
	// Blocks defines the block format if Geometry cannot. It replaces Geometry and Config.Revision,
	// Adapter and Tenant. Name and Layers are always part of the identity.
	Blocks *Blocks
}

// DeviceConfig selects the device.
type DeviceConfig struct {
	Driver Driver `config:"driver"` // default CUDA; a machine without a GPU is an error
	Index  int    `config:"index"`  // among the devices of the driver; default 0
	// Sim configures the simulated device. It is used only with the driver Sim.
	Sim sim.Options
}

// StreamConfig configures the copy streams.
type StreamConfig struct {
	// Path forces the path of all copies between device and host. With stream.PathNone, the
	// default, the planner selects a path for each batch.
	Path stream.Path `config:"path"`
	// Policy is the goal of the choice of paths. The default, plan.Unset, is for an engine that
	// serves a model: loads and the streams of Engine.OpenStream are balanced, and dumps run in the
	// background, so that neither slows the model down much. Any other goal applies to all copies.
	// Use plan.Throughput if nothing else computes on the device.
	Policy plan.Policy `config:"policy"`
	// StagingBytes bounds the device memory in which a stream gathers blocks. The stream allocates
	// it when a batch first needs it. Zero is the default of the stream's policy; for the balanced
	// and background policies that is the smaller of streamcopy.BesideStagingBytes and the size of
	// the cache.
	StagingBytes int64 `config:"staging_bytes"`
	// Budget bounds the slowdown of concurrent work by copies, under the balanced and background
	// policies.
	Budget plan.BudgetOptions
	// Calibration defines when the GPU's paths are measured. Default profile.Once.
	Calibration profile.Calibration `config:"calibration"`
	// ProfileDir is the directory of the measured profiles. Empty: kvlane/profiles in the user's
	// cache directory.
	ProfileDir string `config:"profile_dir"`
}

// Goals returns the goals of the choice of paths for loads and for dumps: that of Policy or, if it
// is unset, plan.Balanced for loads and plan.Background for dumps.
func (s *StreamConfig) Goals() (loads, dumps plan.Goal) {
	if g := s.Policy.Goal; g != plan.Unset {
		return g, g
	}
	return plan.Balanced, plan.Background
}

// interferenceRowBytes is the value of store.Config.RowBytes under goals that weigh interference
// with other work. While a model computes, a copy engine copies rows of 8 and 16 KiB at 30 GB/s, of
// 32 KiB at 45 and of 64 KiB at 54 (H100, docs/benchmarks.md).
const interferenceRowBytes = 32 << 10

// rowBytes returns the value of store.Config.RowBytes: zero if interference does not count.
func (s *StreamConfig) rowBytes() int64 {
	if loads, _ := s.Goals(); loads.Weighs() {
		return interferenceRowBytes
	}
	return 0
}

// StoreConfig configures the store and its tiers.
type StoreConfig struct {
	// Pipeline names the tiers from fast to slow, as "cache|file": see docs/tiers.md. Default:
	// "cache", followed by "file" if Dirs is not empty, by "log" if LogDir is not empty, by "remote"
	// if Remote is not empty and by "object" if Object is not empty. A dump writes a block to each
	// tier below the cache. A load reads it from the first tier that has it, and fills only the
	// cache. Without the cache, blocks pass through pinned memory that does not keep them, and every
	// load reads a lower tier.
	Pipeline string `config:"pipeline"`
	// CacheBytes is the pinned host memory of the cache tier, at least two blocks and at most
	// MaxCacheBytes. The cache holds a whole number of blocks. Open returns ErrNoMemory if the
	// machine or the cgroup has less free memory. In a pipeline without a cache, it is the memory
	// through which blocks pass, and zero selects DefaultWindowBytes, or two blocks if these are
	// larger.
	CacheBytes int64 `config:"cache_bytes"`
	// Dirs are the directories of the file tier. The key of a block selects its directory.
	Dirs []string `config:"dirs"`
	// SharedBound applies FileBytes and DirBytes to all folders in the parent directories of Dirs,
	// and thus to all identities and processes.
	SharedBound bool `config:"shared_bound"`
	// FileBytes bounds the file tier; zero is unbounded.
	FileBytes int64 `config:"file_bytes"`
	// DirBytes bounds directories individually, in the order of Dirs. Directories with zero or
	// without an entry share FileBytes.
	DirBytes []int64 `config:"dir_bytes"`
	// Fsync defines when a block's bytes reach stable storage. With the default, file.FsyncNever,
	// blocks survive the process; after a power failure, checksums detect incomplete blocks.
	Fsync file.FsyncPolicy `config:"fsync"`
	// ReadOnly opens Dirs and LogDir without changing them, and does not write to Object. The
	// directories must exist, and may be on a read-only mount. Dumps go to the cache only. In a pipeline without a cache they fail with
	// ErrReadOnly.
	ReadOnly bool `config:"read_only"`
	// LogDir is the directory of the log tier, on a local disk. Only one process can open it at a
	// time.
	LogDir string `config:"log_dir"`
	// LogBytes bounds the log tier's segments; zero is unbounded.
	LogBytes int64 `config:"log_bytes"`
	// LogFsync defines when the log tier's writes reach stable storage. The default,
	// log.FsyncInterval, delays it by about a tenth of a second.
	LogFsync log.FsyncPolicy `config:"log_fsync"`
	// Remote are the block servers of the remote tier, HOST:PORT[=WEIGHT],... or
	// dns+srv://_SERVICE._PROTOCOL.DOMAIN (metadata.OpenMembers). All clients of the servers need the
	// same list.
	Remote string `config:"remote"`
	// RemoteTimeout bounds each request to a block server, which is then a miss. Zero is the tier's
	// default, one second.
	RemoteTimeout time.Duration `config:"remote_timeout_ms"`
	// RemoteZone is the zone of this process. Replicas of hot runs in block servers of the zone are
	// read first.
	RemoteZone string `config:"remote_zone"`
	// RemoteCA enables TLS to the block servers. It is a file with the certificates of their
	// authorities. RemoteCert and RemoteKey are files with the client's certificate and private
	// key, and RemoteToken one with its token.
	RemoteCA    string `config:"remote_ca"`
	RemoteCert  string `config:"remote_cert"`
	RemoteKey   string `config:"remote_key"`
	RemoteToken string `config:"remote_token"`
	// RemoteRDMA lets block servers read and write the cache's memory through a NIC of Config.RDMA.
	// The servers must authenticate the engine. Without a NIC, and with servers that refuse, blocks
	// pass over sockets; Engine.Notes has the reason.
	RemoteRDMA bool `config:"remote_rdma"`
	// Object is the bucket of the object tier, s3://BUCKET/PREFIX. Stores may share it.
	Object string `config:"object"`
	// ObjectEndpoint is the URL of the bucket's server. Empty: the SDK's.
	ObjectEndpoint string `config:"object_endpoint"`
	// ObjectRegion is the region of the bucket. Empty: the SDK's, or us-east-1.
	ObjectRegion string `config:"object_region"`
	// ObjectCA is a PEM file with authorities of the server.
	ObjectCA string `config:"object_ca"`
	// ObjectEncryption is the encryption at the server, AES256, aws:kms or aws:kms:dsse, and
	// ObjectKMSKey a key of the last two. Empty: the bucket's.
	ObjectEncryption string `config:"object_encryption"`
	ObjectKMSKey     string `config:"object_kms_key"`
	// ObjectTimeout bounds each operation of the object tier with its retries. Zero is the tier's
	// default, two seconds.
	ObjectTimeout time.Duration `config:"object_timeout_ms"`
	// ObjectRequests bounds the requests to the bucket in progress, of reads and of writes each.
	// Zero is the tier's default.
	ObjectRequests int `config:"object_requests"`
	// Direct selects whether blocks are copied between files and the device without pinned memory.
	// Empty: DirectAuto.
	Direct Direct `config:"direct"`
	// DirectBytes is the device memory that stages blocks of direct storage, at least two blocks.
	// Zero: DefaultDirectBytes.
	DirectBytes int64 `config:"direct_bytes"`
	// DirectQueues is the number of device queues that read files asynchronously. It needs
	// GPUDirect Storage. Zero: the store's readers wait for each read.
	DirectQueues int
	// Verify defines whether the device or the CPU computes and verifies the checksums of copies,
	// and when. Default store.VerifyDevice.
	Verify store.VerifyPolicy `config:"verify"`
	// Readers and Writers bound the concurrent reads and writes of the tiers below the cache, at
	// most store.MaxWorkers. Zero is the store's default.
	Readers int `config:"readers"`
	Writers int `config:"writers"`
	// Tasks bounds the loads and prefetches that run at the same time, and separately the dumps, at
	// most store.MaxTasks. Further calls wait until a task ends or their context does. A dump by
	// layers runs until its last layer was submitted. Zero is the store's default.
	Tasks int `config:"tasks"`
	// GDR selects whether loads and dumps use RDMA NICs. Default GDROff.
	GDR GDR `config:"gdr"`
	// Admission selects which blocks are worth loading (Engine.Worth). Default AdmissionAuto.
	Admission Admission `config:"admission"`
	// LeaseMax bounds the duration of leases. Zero is the store's default.
	LeaseMax time.Duration `config:"lease_max_ms"`
	// WaitMax bounds the wait of a block for a slot, for another task that fills the block, or for
	// space in a tier below. Zero is the store's default.
	WaitMax time.Duration `config:"wait_max_ms"`
	// Hooks are called for events such as corrupt blocks and failed tiers.
	Hooks store.Hooks
	// Tracer makes spans of the store's operations, if it is not nil: see telemetry/oteltrace.
	Tracer store.Tracer
}

// GDR selects whether the store's loads and dumps use RDMA NICs that are connected to themselves
// (GPUDirect RDMA).
type GDR string

// The values of GDR.
const (
	// GDROff does not use a NIC.
	GDROff GDR = "off"
	// GDRAuto adds the NICs of Config.RDMA to the paths of the engine's copy streams, if they can
	// be used; otherwise Engine.Notes has the reason. The NICs are measured together with the GPU's
	// own paths (StreamConfig.Calibration), and the planner selects them for the batches for which
	// they are fastest. A NIC that fails or refuses a batch is not used again, and store.Stats
	// counts this with the cause. GDRAuto never uses a software NIC. Register the memory of the
	// host program by Engine.RegisterCache or Engine.Register; other memory is copied by other
	// paths.
	GDRAuto GDR = "auto"
	// GDRRequire uses only NICs, and Open returns an error if that is not possible. With gdr.Soft
	// it uses a software NIC.
	GDRRequire GDR = "require"
)

// ParseGDR parses "off", "auto" or "require".
func ParseGDR(s string) (GDR, error) {
	switch g := GDR(s); g {
	case GDROff, GDRAuto, GDRRequire:
		return g, nil
	}
	return "", fmt.Errorf("unknown choice %q for gdr: must be off, auto or require: %w", s, errdefs.ErrInvalid)
}

// wantsNICs reports whether the configuration uses hardware NICs, if there are any.
func (c *Config) wantsNICs() bool {
	return (c.Store.GDR == GDRAuto || c.Store.GDR == GDRRequire) && c.RDMA.Provider != gdr.Soft
}

// Admission selects which blocks are worth loading.
type Admission string

// The values of Admission.
const (
	AdmissionAuto   Admission = "auto"   // by measured times
	AdmissionAlways Admission = "always" // all blocks
)

// MaxCacheBytes bounds StoreConfig.CacheBytes: 16 TiB.
const MaxCacheBytes = 1 << 44

// DefaultWindowBytes is the default pinned memory through which blocks pass in a pipeline without a
// cache.
const DefaultWindowBytes = 256 << 20

// minSlots is the minimum number of slots of a store: one can be filled while another is written to
// lower tiers.
const minSlots = 2

// readFile sets zero fields of c from ConfigFile, and clears ConfigFile.
func (c *Config) readFile(ctx context.Context) error {
	if c.ConfigFile == "" {
		return nil
	}
	name := c.ConfigFile
	c.ConfigFile = ""
	return settings.Fill(ctx, c, name)
}

// rank returns the tensor-parallel rank of the model.
func (c *Config) rank() string {
	g := c.Model
	if len(c.Groups) > 0 {
		g = c.Groups[0].Geometry
	}
	return strconv.Itoa(g.TPRank)
}
