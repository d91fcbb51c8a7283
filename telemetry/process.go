package telemetry

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// clockTicks is the number of ticks per second in /proc. It is the same on all architectures.
const clockTicks = 100

var buildFamilies = []family[struct{}]{
	{
		Metric{"kvlane_build_info", "none", Gauge, "Always 1; the labels identify the build.", []string{"version", "go_version"}},
		func(_ struct{}, out emit) {
			version, goVersion := "unknown", "unknown"
			if info, ok := debug.ReadBuildInfo(); ok {
				version, goVersion = info.Main.Version, info.GoVersion
			}
			out(1, version, goVersion)
		},
	},
}

// processFamilies are the metrics of the process and the Go runtime. They have the same names as in
// Prometheus's client libraries, so that common dashboards work. They are not in the catalog.
var processFamilies = []family[*process]{
	processFamily("process_cpu_seconds_total", Counter, "User and system CPU time of the process, in seconds.", func(p *process) float64 { return p.cpuSeconds }),
	processFamily("process_resident_memory_bytes", Gauge, "Memory of the process that is in RAM, in bytes.", func(p *process) float64 { return p.residentBytes }),
	processFamily("process_virtual_memory_bytes", Gauge, "Address space of the process, in bytes.", func(p *process) float64 { return p.virtualBytes }),
	processFamily("process_start_time_seconds", Gauge, "Start of the process, in seconds since 1970.", func(p *process) float64 { return p.start }),
	processFamily("process_open_fds", Gauge, "Open file descriptors.", func(p *process) float64 { return p.openFiles }),
	processFamily("process_max_fds", Gauge, "Limit of open file descriptors.", func(p *process) float64 { return p.maxFiles }),
	processFamily("go_goroutines", Gauge, "Goroutines.", func(p *process) float64 { return p.runtime[0] }),
	processFamily("go_memstats_heap_inuse_bytes", Gauge, "Memory of Go objects, in bytes.", func(p *process) float64 { return p.runtime[1] }),
	processFamily("go_gc_cycles_total", Counter, "Completed garbage collections.", func(p *process) float64 { return p.runtime[2] }),
}

func processFamily(name string, typ Type, help string, read func(*process) float64) family[*process] {
	return family[*process]{Metric{Name: name, Type: typ, Help: help}, func(p *process, out emit) {
		if v := read(p); v >= 0 {
			out(v)
		}
	}}
}

// process is the state of the process at the time of a scrape. A value that cannot be read is -1
// and is omitted.
type process struct {
	cpuSeconds, residentBytes, virtualBytes, start, openFiles, maxFiles float64

	runtime [3]float64 // in the order of runtimeSamples
}

var runtimeSamples = [3]string{"/sched/goroutines:goroutines", "/memory/classes/heap/objects:bytes", "/gc/cycles/total:gc-cycles"}

// readProcess reads the state of this process.
func readProcess() *process {
	p := &process{cpuSeconds: -1, residentBytes: -1, virtualBytes: -1, start: -1, openFiles: -1, maxFiles: -1}
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) == nil {
		p.cpuSeconds = (time.Duration(usage.Utime.Nano()) + time.Duration(usage.Stime.Nano())).Seconds()
	}
	if text, err := os.ReadFile("/proc/self/statm"); err == nil {
		if pages := strings.Fields(string(text)); len(pages) > 1 {
			size := float64(os.Getpagesize())
			p.virtualBytes, p.residentBytes = scaled(pages[0], size), scaled(pages[1], size)
		}
	}
	p.start = startTime()
	if names, err := os.ReadDir("/proc/self/fd"); err == nil {
		p.openFiles = float64(len(names) - 1) // without the descriptor of the directory itself
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		p.maxFiles = float64(limit.Cur)
	}
	var samples [len(runtimeSamples)]metrics.Sample
	for i := range samples {
		samples[i].Name = runtimeSamples[i]
	}
	metrics.Read(samples[:])
	for i := range samples {
		p.runtime[i] = -1
		if samples[i].Value.Kind() == metrics.KindUint64 {
			p.runtime[i] = float64(samples[i].Value.Uint64())
		}
	}
	return p
}

// startTime returns the start time of the process in seconds since 1970, or -1.
func startTime() float64 {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return -1
	}
	// The command name is in parentheses and may contain any characters. The field after it is
	// field 3, and the start time is field 22.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	system, err := os.ReadFile("/proc/stat")
	if err != nil || len(fields) < 20 {
		return -1
	}
	for line := range strings.Lines(string(system)) {
		if boot, ok := strings.CutPrefix(line, "btime "); ok {
			after, since := scaled(fields[19], 1.0/clockTicks), scaled(strings.TrimSpace(boot), 1)
			if after < 0 || since < 0 {
				return -1
			}
			return since + after
		}
	}
	return -1
}

// scaled returns the number in text times factor, or -1 if text is not a number.
func scaled(text string, factor float64) float64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return -1
	}
	return float64(n) * factor
}
