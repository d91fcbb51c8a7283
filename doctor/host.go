package doctor

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/limits"
	"github.com/kvlane/kvlane/internal/present"
)

func (m *Machine) host() Host {
	h := Host{Kernel: m.textOr("proc/sys/kernel/osrelease", "unknown"), CPUs: m.CPUs}
	for _, name := range m.names("sys/devices/system/node") {
		if n, ok := strings.CutPrefix(name, "node"); ok {
			if _, err := strconv.Atoi(n); err == nil {
				h.NUMANodes++
			}
		}
	}
	l := limits.Read(m.Files)
	h.MemoryBytes, h.AvailableBytes = l.MemoryBytes, l.AvailableBytes
	h.MemoryLimit, h.PIDLimit = CgroupLimit(l.Memory), CgroupLimit(l.PIDs)
	h.OpenFiles.Soft, h.OpenFiles.Hard, h.OpenFiles.err = m.OpenFiles()
	return h
}

// hugePages returns the pools of huge pages. The kernel's directory names them, for example
// "hugepages-2048kB".
func (m *Machine) hugePages() []HugePages {
	const dir = "sys/kernel/mm/hugepages"
	pools := []HugePages{}
	for _, name := range m.names(dir) {
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(name, "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		pools = append(pools, HugePages{
			SizeBytes: kib << 10,
			Total:     m.numberOr(dir+"/"+name+"/nr_hugepages", 0),
			Free:      m.numberOr(dir+"/"+name+"/free_hugepages", 0),
		})
	}
	return pools
}

// capIPCLock is the bit number of CAP_IPC_LOCK (linux/capability.h).
const capIPCLock = 14

func (m *Machine) lockedMemory() LockedMemory {
	l := LockedMemory{Exempt: m.exemptFromLimit()}
	var err error
	if l.SoftBytes, l.HardBytes, err = m.MemoryLock(); err != nil {
		l.Enough = Answered(err, "")
		return l
	}
	switch {
	case l.SoftBytes == math.MaxUint64:
		l.Enough = Finding{Answer: Yes, Reason: "no limit"}
	case l.Exempt == Yes:
		l.Enough = Finding{Answer: Yes, Reason: "the process has CAP_IPC_LOCK, which lifts the limit"}
	default:
		l.Enough = Finding{
			Answer: No,
			Reason: fmt.Sprintf("%s may be locked; memory that an RDMA NIC or io_uring registers counts, memory that the CUDA driver pins does not", present.Bytes(int64(l.SoftBytes))),
			Remedy: "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service's unit",
		}
	}
	return l
}

func (m *Machine) exemptFromLimit() Answer {
	for line := range strings.Lines(m.textOr("proc/self/status", "")) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			if err != nil {
				return Unknown
			}
			if caps>>capIPCLock&1 == 1 {
				return Yes
			}
			return No
		}
	}
	return Unknown
}

func (m *Machine) ioUring() Finding {
	const sysctl = "proc/sys/kernel/io_uring_disabled"
	err := m.IOUring()
	if err == nil {
		return Finding{Answer: Yes}
	}
	// The sysctl explains a refusal (admin-guide/sysctl/kernel.rst, io_uring_disabled).
	switch m.textOr(sysctl, "") {
	case "1":
		err = fmt.Errorf("%w: kernel.io_uring_disabled is 1, so that only privileged processes and one group may use it", err)
		return Answered(err, "sysctl kernel.io_uring_disabled=0, or join the group of kernel.io_uring_group")
	case "2":
		return Answered(fmt.Errorf("%w: kernel.io_uring_disabled is 2", err), "sysctl kernel.io_uring_disabled=0")
	}
	return Answered(err, "a kernel of 5.6 or later with CONFIG_IO_URING, and a container runtime whose seccomp profile allows it")
}

// notSupported returns an error that wraps ErrNotSupported, which Answered converts to a No.
func notSupported(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrNotSupported)...)
}
