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

// Driver names which kind of device to use: CUDA, Sim or Host.
type Driver string

// The drivers.
const (
	CUDA Driver = "cuda" // an NVIDIA GPU
	Sim  Driver = "sim"  // a GPU in software, for tests: all of it but the speed
	Host Driver = "host" // the CPU, for engines that compute on it: device addresses are the process's own
)

// Config describes an Engine. The zero value of every field but Model and Store.CacheBytes is a
// usable default.
type Config struct {
	// ConfigFile names a YAML file as the command line reads it (docs/command-line.md). Open takes
	// the values of fields that are zero from it, unless they contradict other fields or have no
	// effect beside them. A file cannot set Model, Groups and MetricsAddr. Empty: no file.
	ConfigFile string `config:"config"`
	// Model is the shape of the model's KV cache on this rank, written out or from
	// block.PresetByName. It defines a block: a shard for each layer, K then V.
	Model block.Geometry `config:"model"`
	// Revision of the model's weights, and the Adapter (LoRA) that they are used with. Empty: none
	// is named.
	Revision string `config:"revision"`
	Adapter  string `config:"adapter"`
	// Tenant keeps blocks apart: engines of two tenants never find each other's.
	Tenant string `config:"tenant"`
	// Blocks defines a block if Model cannot: the layers of a pipeline's stage, pages that hold
	// several layers. It replaces the fields above, which must then be empty.
	Blocks *Blocks
	// Groups are the page groups of a hybrid model, in place of Model and Blocks.
	Groups []Group `config:"groups"`

	Device DeviceConfig `config:"device"`
	Stream StreamConfig `config:"stream"`
	Store  StoreConfig  `config:"store"`
	// HostStreams lets the engine adopt streams of the host program (Engine.AdoptStream). Open then
	// allocates all memory of the copy streams: while a stream of the program waits, a driver may
	// block calls that allocate, register or free device memory. Open returns ErrNotSupported if
	// the device cannot adopt streams.
	HostStreams bool `config:"host_streams"`
	// RDMA selects NICs, where Store.GDR asks for them.
	RDMA gdr.Config `config:"rdma"`
	// MetricsAddr is the address on which the engine serves its metrics, from Open until Close:
	// HOST:PORT, on 127.0.0.1 without a host, or unix:/PATH, a socket of mode 0600, where {pid} in
	// PATH stands for the process and {rank} for the model's tensor-parallel rank. Open fails if
	// the address is taken. Empty: metrics are not served.
	MetricsAddr string `config:"metrics_addr"`
}

// Blocks defines a block.
type Blocks struct {
	// Identity identifies the model and the kind of KV. Blocks of two identities are never mixed.
	Identity block.Identity
	// Layout is the division of a block into shards.
	Layout *block.Layout
}

// Group is some of a model's layers whose KV has one geometry and one page table: those with full
// attention, those with a sliding window, those with a recurrent state. Blocks of a group are
// blocks of their own, with keys of their own: Engine.GroupKey. The cache's slots are as long as
// the longest group's blocks, so cut groups so that these are about as long as each other.
type Group struct {
	// Name is part of the identity of the group's blocks.
	Name string `config:"name"`
	// Layers are those of the model that are the group's, ascending, from 0. Each layer is in one
	// group, and none is missing.
	Layers []int `config:"layers"`
	// Geometry is the shape of the group's KV cache. Its Layers may be left zero, as they follow
	// from those above.
	Geometry block.Geometry `config:"geometry"`
	// Blocks defines a block if Geometry cannot. It replaces Geometry and Config.Revision, Adapter
	// and Tenant. Name and Layers are always part of its identity.
	Blocks *Blocks
}

// DeviceConfig selects the device.
type DeviceConfig struct {
	Driver Driver `config:"driver"` // default CUDA; a machine without a GPU is an error
	Index  int    `config:"index"`  // among the devices of the driver; default 0
	// Sim configures the simulated device, where that is what is used.
	Sim sim.Options
}

// StreamConfig configures the copy streams.
type StreamConfig struct {
	// Path forces a path of the copy streams between device and host; stream.PathNone, the default,
	// lets each batch choose.
	Path stream.Path `config:"path"`
	// QueueDepth is how many batches a stream accepts before Submit blocks. Zero is the stream's
	// default.
	QueueDepth int
	// CTAs is the number of thread blocks of a copy kernel, where Path forces one. Zero is the
	// device's default.
	CTAs int
	// Policy is the goal of the choice of paths. plan.Unset, the default, is for an engine that
	// serves a model: loads and the streams of Engine.OpenStream are balanced, and dumps run in the
	// background, so that neither takes much of the model's rate. Any other goal applies to all
	// copies. Use plan.Throughput if nothing else computes on the device.
	Policy plan.Policy `config:"policy"`
	// StagingBytes is the device memory that a stream may gather blocks in, from the first batch on
	// that does. Zero is the stream's default under its policy: where harm counts
	// streamcopy.BesideStagingBytes, and no more than the cache has.
	StagingBytes int64 `config:"staging_bytes"`
	// Budget bounds the harm to what computes beside, where it counts.
	Budget plan.BudgetOptions
	// Calibration defines when the GPU's paths are measured. Default profile.Once.
	Calibration profile.Calibration `config:"calibration"`
	// ProfileDir has the measurements. Empty: kvlane/profiles in the user's cache directory.
	ProfileDir string `config:"profile_dir"`
}

// Goals returns the goals of the choice of paths for loads and for dumps: Policy's goal, or else
// plan.Balanced for loads and plan.Background for dumps.
func (s *StreamConfig) Goals() (loads, dumps plan.Goal) {
	if g := s.Policy.Goal; g != plan.Unset {
		return g, g
	}
	return plan.Balanced, plan.Background
}

// interferenceRowBytes is the length of rows of layers if interference with other work counts.
// While a model computes, a copy engine copies rows of 8 and 16 KiB at 30 GB/s, of 32 KiB at 45 and
// of 64 KiB at 54 (H100, docs/benchmarks.md). With 8 KiB a layer, 32 KiB are four layers at a time.
const interferenceRowBytes = 32 << 10

// rowBytes is store.Config.RowBytes.
func (s *StreamConfig) rowBytes() int64 {
	if loads, _ := s.Goals(); loads.Weighs() {
		return interferenceRowBytes
	}
	return 0
}

// StoreConfig configures the store and its tiers.
type StoreConfig struct {
	// Pipeline names the tiers from fast to slow, as "cache|file": see docs/tiers.md. Default: the
	// cache, above "file" if Dirs is not empty, above "log" if LogDir is not. A dump writes a block
	// to each tier below the cache. A load reads it from the first that has it, and fills the cache
	// only. Without the cache, blocks only pass through pinned memory, and every load reads files.
	Pipeline string `config:"pipeline"`
	// CacheBytes is the pinned host memory of the cache tier, at least two blocks and at most
	// MaxCacheBytes. The rest of a division by the block length is unused. Open returns ErrNoMemory
	// if the machine or the cgroup has less memory left. In a pipeline without a cache, it is the
	// memory through which blocks pass. It may then be zero, for DefaultWindowBytes, or two blocks
	// if these are longer.
	CacheBytes int64 `config:"cache_bytes"`
	// Dirs are the directories of the file tier; a block's directory follows from its key.
	Dirs []string `config:"dirs"`
	// SharedBound makes FileBytes and DirBytes bound all folders in the parent directory of each of
	// Dirs, of all identities and processes.
	SharedBound bool `config:"shared_bound"`
	// FileBytes bounds the file tier; zero is unbounded.
	FileBytes int64 `config:"file_bytes"`
	// DirBytes bounds directories by themselves, in the order of Dirs; those with zero, and those
	// beyond its end, share FileBytes.
	DirBytes []int64 `config:"dir_bytes"`
	// Fsync defines when a block's bytes reach stable storage. Default file.FsyncNever: a block
	// survives the process. After a power failure, its checksums show whether it is whole.
	Fsync file.FsyncPolicy `config:"fsync"`
	// ReadOnly changes nothing in Dirs and LogDir. They must exist, and may be on a read-only
	// mount. Dumps go to the cache only. In a pipeline without a cache they fail with ErrReadOnly.
	ReadOnly bool `config:"read_only"`
	// LogDir is the directory of the log tier, on a local disk: one process has it open at a time.
	LogDir string `config:"log_dir"`
	// LogBytes bounds the log tier's segments; zero is unbounded.
	LogBytes int64 `config:"log_bytes"`
	// LogFsync defines when the log tier's writes reach stable storage. Default log.FsyncInterval:
	// a tenth of a second later.
	LogFsync log.FsyncPolicy `config:"log_fsync"`
	// Direct selects whether blocks go between files and the device without pinned memory. Empty:
	// DirectAuto.
	Direct Direct `config:"direct"`
	// DirectBytes is the memory of the device through which such blocks pass, at least two blocks.
	// Zero: DefaultDirectBytes.
	DirectBytes int64 `config:"direct_bytes"`
	// DirectQueues is the number of device queues that read files asynchronously, with GPUDirect
	// Storage only. Zero: the store's readers wait for each read.
	DirectQueues int
	// Verify defines where and when checksums are made and checked in copies from and to the
	// device. Default store.VerifyDevice.
	Verify store.VerifyPolicy `config:"verify"`
	// Readers and Writers bound the concurrent reads from and writes to the tiers below the cache,
	// store.MaxWorkers at most. Zero is the store's default.
	Readers int `config:"readers"`
	Writers int `config:"writers"`
	// Tasks bounds the loads and prefetches that run at the same time, and separately the dumps. It
	// is at most store.MaxTasks. Further calls wait until their context ends. A dump by layers runs
	// until its last layer was submitted. Zero is the store's default.
	Tasks int `config:"tasks"`
	// GDR says whether loads and dumps travel by RDMA NICs. Default GDROff.
	GDR GDR `config:"gdr"`
	// Admission selects which blocks are worth loading (Engine.Worth). Default AdmissionAuto.
	Admission Admission `config:"admission"`
	// LeaseMax bounds how long a lease may last. Zero is the store's default.
	LeaseMax time.Duration `config:"lease_max_ms"`
	// WaitMax bounds how long a block waits for a slot, for another's fill, or for room in a tier
	// below. Zero is the store's default.
	WaitMax time.Duration `config:"wait_max_ms"`
	// Hooks are told of what should not pass in silence.
	Hooks store.Hooks
}

// GDR selects whether the store's loads and dumps use RDMA NICs that are connected to themselves
// (GPUDirect RDMA).
type GDR string

// The choices.
const (
	// GDROff does not use a NIC.
	GDROff GDR = "off"
	// GDRAuto adds the NICs of Config.RDMA to the paths of the engine's copy streams, if they can
	// be used. They are measured with the GPU's own paths (StreamConfig.Calibration), and the
	// planner selects them for the batches for which they are fastest. Engine.Notes has the reason
	// if they cannot be used. A NIC that fails or refuses a batch is not used again: store.Stats
	// counts that with its cause. GDRAuto uses no software NIC. Engine.RegisterCache and
	// Engine.Register declare the memory of the host program. Other memory is copied by the other
	// paths.
	GDRAuto GDR = "auto"
	// GDRRequire uses NICs, and returns an error if that is not possible. With gdr.Soft it uses a
	// software NIC.
	GDRRequire GDR = "require"
)

// ParseGDR reads "off", "auto" or "require".
func ParseGDR(s string) (GDR, error) {
	switch g := GDR(s); g {
	case GDROff, GDRAuto, GDRRequire:
		return g, nil
	}
	return "", fmt.Errorf("unknown choice %q for gdr: must be off, auto or require: %w", s, errdefs.ErrInvalid)
}

// wantsNICs reports whether NICs of the machine are used, if possible.
func (c *Config) wantsNICs() bool {
	return (c.Store.GDR == GDRAuto || c.Store.GDR == GDRRequire) && c.RDMA.Provider != gdr.Soft
}

// Admission selects which blocks are worth loading.
type Admission string

// The choices.
const (
	AdmissionAuto   Admission = "auto"   // by measured times
	AdmissionAlways Admission = "always" // all blocks
)

// MaxCacheBytes bounds StoreConfig.CacheBytes: more than any host has.
const MaxCacheBytes = 1 << 44

// DefaultWindowBytes is the pinned memory through which blocks pass where the pipeline has no
// cache.
const DefaultWindowBytes = 256 << 20

// minSlots is the fewest slots that a store works with: one to fill while another is being written
// down.
const minSlots = 2

// readFile takes values from ConfigFile, and clears it.
func (c *Config) readFile(ctx context.Context) error {
	if c.ConfigFile == "" {
		return nil
	}
	name := c.ConfigFile
	c.ConfigFile = ""
	return settings.Fill(ctx, c, name)
}

// rank returns the configuration's tensor-parallel rank.
func (c *Config) rank() string {
	g := c.Model
	if len(c.Groups) > 0 {
		g = c.Groups[0].Geometry
	}
	return strconv.Itoa(g.TPRank)
}
