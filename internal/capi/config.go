package capi

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvlane/kvlane"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/gdr"
	"github.com/kvlane/kvlane/profile"
	"github.com/kvlane/kvlane/store"
	"github.com/kvlane/kvlane/stream"
	"github.com/kvlane/kvlane/stream/copy/plan"
	"github.com/kvlane/kvlane/tier/file"
	"github.com/kvlane/kvlane/tier/log"
)

// maxMillis is the longest time that is not without an end: what a time.Duration holds.
const maxMillis = math.MaxInt64 / int64(time.Millisecond)

// The keys of a configuration, which docs/library.md describes. What is left out has the default of kvlane.Config.
type (
	config struct {
		Model       geometry `json:"model"`
		Revision    string   `json:"revision"`
		Adapter     string   `json:"adapter"`
		Tenant      string   `json:"tenant"`
		Groups      []group  `json:"groups"`
		Device      device   `json:"device"`
		HostStreams bool     `json:"host_streams"`
		Stream      streams  `json:"stream"`
		Store       storage  `json:"store"`
		RDMA        rdma     `json:"rdma"`
		MetricsAddr string   `json:"metrics_addr"`
	}

	geometry struct {
		Name        string `json:"name"`
		DType       string `json:"dtype"`
		Layers      int    `json:"layers"`
		KVHeads     int    `json:"kv_heads"`
		HeadSize    int    `json:"head_size"`
		BlockTokens int    `json:"block_tokens"`
		TPSize      int    `json:"tp_size"`
		TPRank      int    `json:"tp_rank"`
		MLA         bool   `json:"mla"`
		State       bool   `json:"state"`
	}

	group struct {
		Name     string   `json:"name"`
		Layers   []int    `json:"layers"`
		Geometry geometry `json:"geometry"`
	}

	device struct {
		Driver string `json:"driver"`
		Index  int    `json:"index"`
	}

	streams struct {
		Path         string `json:"path"`
		Policy       string `json:"policy"`
		Calibration  string `json:"calibration"`
		ProfileDir   string `json:"profile_dir"`
		StagingBytes size   `json:"staging_bytes"`
	}

	storage struct {
		Pipeline    string `json:"pipeline"`
		CacheBytes  size   `json:"cache_bytes"`
		Dirs        paths  `json:"dirs"`
		SharedBound bool   `json:"shared_bound"`
		FileBytes   size   `json:"file_bytes"`
		DirBytes    []size `json:"dir_bytes"`
		Fsync       string `json:"fsync"`
		ReadOnly    bool   `json:"read_only"`
		LogDir      string `json:"log_dir"`
		LogBytes    size   `json:"log_bytes"`
		LogFsync    string `json:"log_fsync"`
		StreamFiles bool   `json:"stream_files"`
		Verify      string `json:"verify"`
		Readers     int    `json:"readers"`
		Writers     int    `json:"writers"`
		Tasks       int    `json:"tasks"`
		GDR         string `json:"gdr"`
		Admission   string `json:"admission"`
		LeaseMax    int64  `json:"lease_max_ms"`
		WaitMax     int64  `json:"wait_max_ms"`
	}

	rdma struct {
		Provider      string     `json:"provider"`
		NICs          []string   `json:"nics"`
		NICsByDevice  [][]string `json:"nics_by_device"`
		Count         int        `json:"count"`
		Port          int        `json:"port"`
		GIDIndex      *int       `json:"gid_index"`
		MTU           int        `json:"mtu"`
		QueuePairs    int        `json:"queue_pairs"`
		RegisterOnUse bool       `json:"register_on_use"`
	}
)

// size is a number of bytes: in JSON a number, or text such as "8GiB".
type size int64

// paths are directories: in JSON a list of texts, or one text.
type paths []string

// ParseConfig reads the configuration of an engine and validates it. It reports everything that is
// wrong at once, as ErrInvalid.
func ParseConfig(text []byte) (kvlane.Config, error) {
	var c config
	err := decode(text, &c)
	if errors.Is(err, errMistyped) {
		return kvlane.Config{}, err
	}
	out, confErr := c.config()
	if err := errors.Join(err, confErr, out.Validate()); err != nil {
		return kvlane.Config{}, err
	}
	return out, nil
}

// config returns c for the engine. Values that only this form has are checked here.
func (c *config) config() (kvlane.Config, error) {
	var errs []error
	out := kvlane.Config{
		Model: c.Model.geometry(), Revision: c.Revision, Adapter: c.Adapter, Tenant: c.Tenant,
		Device:      kvlane.DeviceConfig{Driver: kvlane.Driver(c.Device.Driver), Index: c.Device.Index},
		HostStreams: c.HostStreams,
		MetricsAddr: c.MetricsAddr,
		Stream: kvlane.StreamConfig{
			Calibration: profile.Calibration(c.Stream.Calibration), ProfileDir: c.Stream.ProfileDir, StagingBytes: int64(c.Stream.StagingBytes),
		},
		Store: c.Store.config(&errs),
		RDMA: gdr.Config{
			Provider: gdr.Provider(c.RDMA.Provider), NICs: c.RDMA.NICs, NICsByDevice: c.RDMA.NICsByDevice, Count: c.RDMA.Count,
			Port: c.RDMA.Port, GIDIndex: c.RDMA.GIDIndex, MTU: c.RDMA.MTU, QueuePairs: c.RDMA.QueuePairs, RegisterOnUse: c.RDMA.RegisterOnUse,
		},
	}
	named(&errs, c.Stream.Path, stream.ParsePath, &out.Stream.Path)
	named(&errs, c.Stream.Policy, plan.ParseGoal, &out.Stream.Policy.Goal)
	for _, g := range c.Groups {
		out.Groups = append(out.Groups, kvlane.Group{Name: g.Name, Layers: g.Layers, Geometry: g.Geometry.geometry()})
	}
	return out, errors.Join(errs...)
}

func (g geometry) geometry() block.Geometry {
	out := block.Geometry{
		Model: g.Name, DType: g.DType, Layers: g.Layers, KVHeads: g.KVHeads, HeadSize: g.HeadSize, BlockTokens: g.BlockTokens,
		TPSize: g.TPSize, TPRank: g.TPRank, MLA: g.MLA, State: g.State,
	}
	if out.TPSize == 0 && g != (geometry{}) {
		out.TPSize = 1
	}
	return out
}

func (s *storage) config(errs *[]error) kvlane.StoreConfig {
	out := kvlane.StoreConfig{
		Pipeline: s.Pipeline, CacheBytes: int64(s.CacheBytes), Dirs: s.Dirs, SharedBound: s.SharedBound, FileBytes: int64(s.FileBytes), ReadOnly: s.ReadOnly,
		LogDir: s.LogDir, LogBytes: int64(s.LogBytes), StreamFiles: s.StreamFiles, Readers: s.Readers, Writers: s.Writers, Tasks: s.Tasks, GDR: kvlane.GDR(s.GDR),
		LeaseMax: millis(errs, "lease_max_ms", s.LeaseMax), WaitMax: millis(errs, "wait_max_ms", s.WaitMax),
	}
	for _, n := range s.DirBytes {
		out.DirBytes = append(out.DirBytes, int64(n))
	}
	named(errs, s.Fsync, file.ParseFsyncPolicy, &out.Fsync)
	named(errs, s.LogFsync, log.ParseFsyncPolicy, &out.LogFsync)
	named(errs, s.Verify, store.ParseVerify, &out.Verify)
	named(errs, s.Admission, parseAdmission, &out.AdmitAlways)
	return out
}

// parseAdmission says whether everything is admitted.
func parseAdmission(s string) (bool, error) {
	if s != "auto" && s != "always" {
		return false, invalid("admission %q is neither auto nor always", s)
	}
	return s == "always", nil
}

// named reads a name into a value; an empty one leaves the default.
func named[T any](errs *[]error, name string, parse func(string) (T, error), to *T) {
	if name == "" {
		return
	}
	v, err := parse(name)
	if err != nil {
		if !errors.Is(err, errdefs.ErrInvalid) {
			err = fmt.Errorf("%w: %w", errdefs.ErrInvalid, err)
		}
		*errs = append(*errs, err)
		return
	}
	*to = v
}

func millis(errs *[]error, key string, n int64) time.Duration {
	if n < 0 || n > maxMillis {
		*errs = append(*errs, invalid("%s of %d is not 0 to %d", key, n, maxMillis))
		return 0
	}
	return time.Duration(n) * time.Millisecond
}
