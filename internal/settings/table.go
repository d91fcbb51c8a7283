package settings

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
)

// tag is the struct tag that contains the key of a field.
const tag = "config"

// Kind is the type of a setting's value.
type Kind uint8

// Kinds of settings. On the command line, values of lists are separated by commas. In the
// environment this also holds for Dirs.
const (
	Text Kind = iota
	Bool
	Int
	Size  // bytes, for example 8GiB
	List  // list of texts
	Dir   // a directory
	Dirs  // list of directories; the flag may be repeated
	Sizes // list of sizes; the flag may be repeated
)

// Setting is a row of Table.
type Setting struct {
	// Key is the key in configurations of the Go, C and Python libraries. Empty for settings of
	// commands only.
	Key string
	// Name is the name of the flag and of the key in the configuration file. Empty for settings of
	// libraries only.
	Name string
	Kind Kind
	Doc  string
	// Default is a description of the value that is used if none is given.
	Default string
	// Unset is the text that leaves the setting at its default. Empty if there is none.
	Unset string
	// Flag is the flag's initial value. Empty: Unset or Default.
	Flag string
	// Words are the valid values. Nil: all values that Kind and Check accept.
	Words []string
	Check func(value string) error
	// FlagOnly lists commands that read the setting from the command line only, because it selects
	// the subject of a single run.
	FlagOnly []string
}

// short lists commands that end soon. They do not serve metrics, so that longer commands can use
// the address.
var short = []string{"doctor", "topo", "store", "transfer ls", "transfer probe", "transfer put", "transfer get"}

// Table is the list of all settings, in the order of the documentation.
var Table = slices.Concat(engineSettings, TierSettings(), taskSettings)

var engineSettings = []Setting{
	{Key: "config", Doc: "a configuration file, as `kvlane` reads it; keys given here take precedence over the file's", Default: "none"},

	{Key: "model", Doc: "the shape of the KV cache on this rank; or `groups`"},
	{Key: "model.name", Doc: "the model, as part of a block's identity", Default: required},
	{Key: "model.dtype", Doc: "of the KV cache: `bfloat16` (or `bf16`), `float16` (`fp16`, `f16`, `half`), `float32` (`fp32`, `f32`), `fp8_e4m3` (`fp8`, `float8_e4m3fn`), `fp8_e5m2` (`float8_e5m2`) or `int8`", Default: required},
	{Key: "model.layers", Kind: Int, Doc: "number of layers", Default: required},
	{Key: "model.kv_heads", Kind: Int, Doc: "of the whole model; 1 with `mla`", Default: required},
	{Key: "model.head_size", Kind: Int, Doc: "elements per head; with `mla`, per token's latent, including its rotary part", Default: required},
	{Key: "model.block_tokens", Kind: Int, Doc: "tokens per block and page", Default: required},
	{Key: "model.tp_size", Kind: Int, Doc: "number of tensor-parallel ranks", Default: "1"},
	{Key: "model.tp_rank", Kind: Int, Doc: "this rank, from 0", Default: "0"},
	{Key: "model.mla", Kind: Bool, Doc: "a layer has one plane of latents, the same on every rank", Default: "false"},
	{Key: "model.state", Kind: Bool, Doc: "a layer has one plane of recurrent state, of `kv_heads` heads per block", Default: "false"},
	{Key: "revision", Doc: "of the weights, and of all other options that change KV: RoPE, quantization, the stage of a pipeline", Default: "none"},
	{Key: "adapter", Doc: "a LoRA adapter", Default: "none"},
	{Key: "tenant", Doc: "tenants never find each other's blocks", Default: "none"},
	{Key: "groups", Doc: "page groups of a hybrid model, an array of objects, instead of `model`", Default: "none"},
	{Key: "groups.name", Doc: "of the page group, as part of the identity of its blocks", Default: required},
	{Key: "groups.layers", Doc: "the model's layers in the group, ascending from 0", Default: required},
	{Key: "groups.geometry", Doc: "as `model`; its `layers` may be omitted", Default: required},

	{
		Key: "device.driver", Name: "device", Doc: "`cuda`; `host`, the process's own memory, for engines on a CPU; or `sim`, a simulated GPU, for tests", Default: "cuda", Unset: "auto",
		Words: []string{"auto", "cuda", "sim", "host"}, FlagOnly: []string{"bench file"},
	},
	{Key: "device.index", Name: "device-index", Kind: Int, Doc: "index among the driver's devices", Default: "0", FlagOnly: []string{"bench file"}},
	{Key: "host_streams", Kind: Bool, Doc: "loads and dumps can wait for CUDA streams of the program (`kvl_after`), and these for loads (`kvl_stream_wait`)", Default: "false"},
	{
		Key: "stream.path", Name: "path", Doc: "forces a copy path", Default: "each batch's best", Unset: "auto",
		Words: append([]string{"auto"}, names(stream.Paths(stream.MovedByDevice))...),
	},
	{
		Key: "stream.policy", Name: "policy", Doc: "goal of the choice of paths: `throughput`, `latency`, `balanced` (time against interference with the model) or `background` (little interference)", Default: "loads `balanced`, dumps `background`", Unset: "serving",
		Words: append([]string{"serving"}, names([]plan.Goal{plan.Throughput, plan.Latency, plan.Balanced, plan.Background})...),
	},
	{Key: "stream.calibration", Name: "calibrate", Doc: "`once` measures a GPU's paths for two seconds if no profile is stored; `never`", Default: "once", Words: []string{"once", "never"}},
	{Key: "stream.profile_dir", Name: "profile-dir", Kind: Dir, Doc: "directory of the stored profiles", Default: "`kvlane/profiles` in the user's cache directory", Flag: none},
	{Key: "stream.staging_bytes", Kind: Size, Doc: "device memory in which a stream may gather", Default: "by the policy, 256 MiB at most"},

	{Key: "store.verify", Name: "verify", Doc: "where checksums are made and checked: `device` (the copy itself, or else the CPU), `always` (also the CPU, before and after copies) or `fill` (as `always`, except for blocks in the cache)", Default: "device", Words: []string{"device", "always", "fill"}},
	{Key: "store.gdr", Name: "gdr", Doc: "copies by RDMA NICs: `off`, `auto` (batches for which NICs are measured to be fastest) or `require`", Default: "off", Words: []string{"off", "auto", "require"}},
	{Key: "rdma.provider", Name: "rdma-provider", Doc: "`ibv`, the machine's NICs, or `soft`, NICs in software", Default: "ibv", Words: []string{"ibv", "soft"}},
	{Key: "rdma.nics", Name: "nic", Kind: List, Doc: "names of NICs", Default: "the nearest", Flag: none},
	{Key: "rdma.nics_by_device", Doc: "the same for each device, by its index: an array of arrays", Default: "none"},
	{Key: "rdma.count", Kind: Int, Doc: "number of NICs, if several are equally near", Default: "1"},
	{Key: "rdma.port", Name: "rdma-port", Kind: Int, Doc: "port of each NIC, from 1", Default: "the first active", Flag: "0"},
	{Key: "rdma.gid_index", Name: "rdma-gid-index", Kind: Int, Doc: "index in the port's address table", Default: "the best", Unset: "-1"},
	{Key: "rdma.mtu", Name: "rdma-mtu", Kind: Int, Doc: "bytes per packet, a power of two from 256 to 4096", Default: "the port's", Flag: "0", Words: []string{"0", "256", "512", "1024", "2048", "4096"}},
	{Key: "rdma.queue_pairs", Name: "rdma-queue-pairs", Kind: Int, Doc: "queue pairs per NIC and stream", Default: "the stream's", Flag: "0"},
	{Key: "rdma.register_on_use", Kind: Bool, Doc: "registers memory that was not registered before its first copy", Default: "false"},

	{
		Key: "store.pipeline", Name: "pipeline", Doc: "tiers from fast to slow, as `cache|file`: " + tierDocs(), Default: "a cache above the given directories", Flag: none,
		Check: func(v string) error { _, err := ParsePipeline(v); return err }, FlagOnly: []string{"bench store"},
	},
}

var taskSettings = []Setting{
	{Key: "store.read_only", Kind: Bool, Doc: "opens the directories read-only", Default: "false"},
	{
		Key: "store.direct", Name: "direct", Doc: "loads, and dumps of pipelines `file` and `log`, use cuFile, without pinned memory: `off`, `auto` (where it was measured to be faster; else GPUDirect Storage where it works; never with `host_streams`), `always` (also the compatibility mode) or `require`", Default: "auto", Unset: "auto",
		Words: []string{"off", "auto", "always", "require"}, FlagOnly: []string{"bench file"},
	},
	{Key: "store.direct_bytes", Kind: Size, Doc: "GPU memory through which such blocks pass", Default: "64 MiB"},
	{Key: "store.admission", Doc: "which blocks are worth loading (`kvl_worth`): `auto`, by measured times, or `always`, all", Default: "auto", Words: []string{"auto", "always"}},
	{Key: "store.readers", Kind: Int, Doc: "threads that read from the tiers below the cache", Default: "16"},
	{Key: "store.writers", Kind: Int, Doc: "threads that write to the tiers below the cache", Default: "4"},
	{Key: "store.tasks", Kind: Int, Doc: "concurrent loads and prefetches, and as many dumps, which end when they are durable; further calls are `KVL_BUSY`", Default: "256"},
	{Key: "store.lease_max_ms", Kind: Int, Doc: "longest duration of a lease", Default: "30000"},
	{Key: "store.wait_max_ms", Kind: Int, Doc: "longest wait of a block for space or for another fill, and of a CUDA stream for a load", Default: "30000"},

	{Name: "protocol", Doc: "protocol of transfers", Words: []string{"mooncake", "auto", "nvlink", "shm", "rdma", "tcp"}},
	{Name: "metadata", Doc: "how segments are found: P2PHANDSHAKE (their name is their address), or a server: http://HOST:PORT/metadata, or with kvlane's own protocol etcd://HOST:PORT,.../CLUSTER"},
	{Name: "cluster", Doc: "name of the cluster, which separates its segments in a metadata server"},
	{Name: "buffer-size", Kind: Size, Doc: "bytes of memory to transfer from and to"},

	// The same file configures commands and engines, and they cannot share an address.
	{Key: "metrics_addr", Doc: "serves [metrics](metrics.md) until the engine closes: see \"Figures\"; the file's `metrics-addr` is for commands only", Default: "none"},
	{Name: "metrics-addr", Doc: "serves Prometheus metrics at HOST:PORT or unix:/PATH under /metrics, and /healthz and /readyz, while the command runs", Check: checkAddress, FlagOnly: short},
	{Name: "pprof-addr", Doc: "serves Go's profiles at HOST:PORT, a loopback address, under /debug/pprof/", Check: checkAddress, FlagOnly: short},
	{Name: "log-level", Doc: "least severe log records to print: debug, info, warn or error", Flag: "info", Words: []string{"debug", "info", "warn", "error"}},
	{Name: "log-format", Doc: "form of log records on standard error: text or json", Flag: "text", Words: []string{"text", "json"}},
}

const (
	required = "required"
	// none as Flag means that the flag has no initial value.
	none = "-"
)

func names[T fmt.Stringer](values []T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = v.String()
	}
	return out
}

func checkAddress(v string) error {
	_, _, err := net.SplitHostPort(v)
	return err
}

// ByName returns the setting with a name, or nil.
func ByName(name string) *Setting {
	i := slices.IndexFunc(Table, func(s Setting) bool { return s.Name == name })
	if name == "" || i < 0 {
		return nil
	}
	return &Table[i]
}

// Env returns the name of the environment variable for the setting.
func (s *Setting) Env() string {
	return "KVLANE_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Initial returns the value of the flag if it is not given.
func (s *Setting) Initial() string {
	switch {
	case s.Flag == none:
		return ""
	case s.Flag != "":
		return s.Flag
	case s.Unset != "":
		return s.Unset
	}
	return s.Default
}

// IsDir reports whether the values are directories.
func (s *Setting) IsDir() bool { return s.Kind == Dir || s.Kind == Dirs }

// IsList reports whether the setting may have several values.
func (s *Setting) IsList() bool { return s.Kind == List || s.Kind == Dirs || s.Kind == Sizes }

// CheckValue returns an error if text is not a valid value of the setting.
func (s *Setting) CheckValue(text string) error {
	switch {
	case s.Check != nil:
		return s.Check(text)
	case len(s.Words) > 0 && !slices.Contains(s.Words, text):
		return fmt.Errorf("%q is not one of %s%s", text, strings.Join(s.Words, ", "), DidYouMean(text, s.Words))
	}
	return s.CheckKind(text)
}

// CheckKind returns an error if text cannot be parsed as the setting's kind.
func (s *Setting) CheckKind(text string) error {
	switch s.Kind {
	case Bool:
		if _, err := strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%q is neither true nor false", text)
		}
	case Int:
		if _, err := strconv.Atoi(text); err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
	case Size, Sizes:
		_, err := present.ParseSize(text)
		return err
	default:
	}
	return nil
}
