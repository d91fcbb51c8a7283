package doctor

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/kvlane/kvlane/internal/present"
)

// WriteText writes the report as text. It returns the error of w.
func (r *Report) WriteText(w io.Writer) error {
	p := &printer{Page: present.NewPage(present.ScreenOf(w)), printedAs: map[Finding]string{}}
	p.verdict(r)
	p.host(r)
	p.nvidia(&r.NVIDIA)
	p.rdma(&r.RDMA)
	p.storage(r)
	p.paths(r)
	p.required(r)
	return p.Write(w)
}

type printer struct {
	*present.Page
	section   present.Table
	printedAs map[Finding]string // title under which a finding was printed with its reason
}

// begin starts a section. end prints the rows that line and finding have added.
func (p *printer) begin(title string) {
	p.Heading("%s", title)
	p.section = present.Table{Prose: true}
}

func (p *printer) end() { p.Table(&p.section) }

func (p *printer) line(title, format string, args ...any) {
	p.section.Row(title, fmt.Sprintf(format, args...))
}

// finding adds an answer with its reason and remedy. If the same finding was printed before, it
// adds a reference to its title instead.
func (p *printer) finding(title string, f Finding) {
	if before := p.printedAs[f]; before != "" {
		p.line(title, "%s: see %s above", f.Answer, before)
		return
	}
	p.line(title, "%s", f.inline())
	if f.Answer == Yes || f.Reason == "" {
		return
	}
	p.printedAs[f] = strings.TrimSpace(title)
	if f.Remedy != "" {
		p.line("", "needs: %s", f.Remedy)
	}
}

// why returns the short form of the reason, if there is one.
func (f Finding) why() string {
	if f.Brief != "" {
		return f.Brief
	}
	return f.Reason
}

func (f Finding) inline() string {
	if f.Reason == "" {
		return string(f.Answer)
	}
	return string(f.Answer) + ": " + f.why()
}

// verdict adds the usable GPUs, the available and the missing paths, and the number of requirements
// that are met.
func (p *printer) verdict(r *Report) {
	have := map[Answer][]string{}
	for i := range r.Paths {
		have[r.Paths[i].Available.Answer] = append(have[r.Paths[i].Available.Answer], r.Paths[i].Name)
	}
	if d := &r.NVIDIA.Driver; d.Answer == Yes {
		usable := 0
		for i := range r.NVIDIA.GPUs {
			if r.NVIDIA.GPUs[i].Usable.Answer == Yes {
				usable++
			}
		}
		p.Verdict(markOf(usable, len(r.NVIDIA.GPUs)), "%d of %s can be used.", usable, present.Things(int64(len(r.NVIDIA.GPUs)), "GPU"))
	} else {
		p.Verdict(present.Warn, "No GPU can be used: %s.", d.why())
	}
	if yes := have[Yes]; len(yes) > 0 {
		p.Verdict(present.Good, "Available: %s.", strings.Join(yes, ", "))
	}
	if no := append(have[No], have[Unknown]...); len(no) > 0 {
		p.Verdict(present.Warn, "Not available: %s.", strings.Join(no, ", "))
	}
	if all := len(r.Required); all > 0 {
		there := 0
		for i := range r.Required {
			if r.Required[i].Available.Answer == Yes {
				there++
			}
		}
		mark := present.Bad
		if there == all {
			mark = present.Good
		}
		p.Verdict(mark, "%d of %d required are available.", there, all)
	}
}

func markOf(good, all int) present.Mark {
	if good < all {
		return present.Warn
	}
	return present.Good
}

func (p *printer) host(r *Report) {
	h := &r.Host
	p.begin("Machine")
	p.line("kernel", "%s", h.Kernel)
	p.line("CPUs", "%d", h.CPUs)
	if h.NUMANodes > 0 {
		p.line("NUMA nodes", "%d", h.NUMANodes)
	}
	p.line("memory", "%s, %s available", present.Bytes(h.MemoryBytes), present.Bytes(h.AvailableBytes))
	if g := &h.MemoryLimit; g.File != "" {
		p.line("memory limit", "%s, %s in use (%s)", present.Bytes(g.Max), present.Bytes(g.Used), g.File)
	} else {
		p.line("memory limit", "none by a cgroup")
	}
	if g := &h.PIDLimit; g.File != "" {
		p.line("process limit", "%s, %s in use (%s)", present.Count(g.Max), present.Count(g.Used), g.File)
	}
	if h.OpenFiles.err != nil {
		p.line("open files", "not known: %v", h.OpenFiles.err)
	} else {
		p.line("open files", "%s, at most %s (ulimit -n)", count(h.OpenFiles.Soft), count(h.OpenFiles.Hard))
	}
	if len(r.HugePages) == 0 {
		p.line("huge pages", "none")
	}
	for _, hp := range r.HugePages {
		p.line("huge pages", "%s of %s, %s free", present.Count(hp.Total), present.Size(hp.SizeBytes), present.Count(hp.Free))
	}
	p.finding("locked memory", r.LockedMem.Enough)
	shm := &r.SharedMem
	if shm.Usable.Answer == Yes {
		p.line("/dev/shm", "%s, %s free", present.Bytes(shm.TotalBytes), present.Bytes(shm.FreeBytes))
	} else {
		p.finding("/dev/shm", shm.Usable)
	}
	p.end()
}

func (p *printer) nvidia(n *NVIDIA) {
	p.begin("GPUs")
	p.finding("CUDA driver", n.Driver)
	if n.DriverVersion != "" {
		p.line("driver version", "%s", n.DriverVersion)
	}
	if n.KernelModule != "" {
		p.line("kernel module", "%s", n.KernelModule)
	}
	for i := range n.GPUs {
		p.gpu(&n.GPUs[i])
	}
	// GPUs that the driver reports were printed above.
	if len(n.GPUs) == 0 {
		for i := range n.OnBus {
			p.line("on the PCI bus", "%s", n.OnBus[i].text())
		}
	}
	for i := range n.Peers {
		peer := &n.Peers[i]
		p.finding(fmt.Sprintf("GPU %d -> GPU %d", peer.From, peer.To), peer.Access)
		if peer.Link != "" {
			p.line("", "over %s", peer.Link)
		}
	}
	p.end()
}

func (p *printer) gpu(g *GPU) {
	if g.Usable.Answer != Yes {
		p.finding(fmt.Sprintf("GPU %d", g.Index), g.Usable)
		if g.PCI.Address != "" {
			p.line("", "%s", g.PCI.text())
		}
		return
	}
	p.line(fmt.Sprintf("GPU %d", g.Index), "%s, %s, compute %s, %d multiprocessors, %d copy engines", g.Name, present.Bytes(g.MemoryBytes),
		g.Compute, g.Multiprocs, g.CopyEngines)
	p.line("", "%s", g.UUID)
	if g.PCI.Address != "" {
		p.line("", "%s", g.PCI.text())
	}
	if g.NUMANode >= 0 {
		p.line("", "NUMA node %d", g.NUMANode)
	}
	p.finding("  paths", g.Probe.summary())
	p.finding("  path profile", g.Profile)
	p.finding("  NIC", g.NIC)
	p.finding("  dma-buf", g.DMABuf)
	for _, s := range g.Sharing {
		p.finding("  share "+s.Handle, s.Works)
	}
}

// summary returns one finding for all copy paths of a GPU. It is Yes if all work; otherwise it
// lists the ones that do not.
func (p *Probe) summary() Finding {
	var lacks []string
	for _, a := range p.abilities() {
		if f := *a.found; f.Answer != Yes {
			lacks = append(lacks, a.name+" ("+f.inline()+")")
		}
	}
	if len(lacks) == 0 {
		return Finding{Answer: "all", Reason: "all tried, and checksums on the way"}
	}
	return Finding{Answer: "not all", Reason: strings.Join(lacks, "; ")}
}

func (l *PCILink) text() string {
	s := "PCI " + l.Address
	if l.Speed == "" || l.Width == 0 {
		return s + ", link not known"
	}
	s += fmt.Sprintf(", %s x%d", l.Speed, l.Width)
	if l.MaxSpeed != "" && l.MaxWidth != 0 && (l.MaxSpeed != l.Speed || l.MaxWidth != l.Width) {
		s += fmt.Sprintf(" of %s x%d (an idle GPU slows its link down)", l.MaxSpeed, l.MaxWidth)
	}
	return s
}

func (p *printer) rdma(r *RDMA) {
	p.begin("RDMA")
	if len(r.Devices) == 0 {
		p.line("devices", "none")
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		node := "NUMA node not known"
		if d.NUMANode >= 0 {
			node = fmt.Sprintf("NUMA node %d", d.NUMANode)
		}
		p.line(d.Name, "firmware %s, %s", orDash(d.Firmware), node)
		for j := range d.Ports {
			port := &d.Ports[j]
			p.line("", "port %d: %s, %s, %s", port.Number, port.State, port.LinkLayer, orDash(port.Rate))
			for _, g := range port.GIDs {
				p.line("", "GID %d: %s %s", g.Index, g.GID, g.Type)
			}
		}
	}
	p.finding("libibverbs", r.Library)
	if len(r.Devices) > 0 {
		p.finding("GPU peer memory", r.PeerMemory)
		p.line("locations", "kvlane topo shows them with GPUs and memory")
	}
	p.end()
}

func (p *printer) storage(r *Report) {
	p.begin("Storage")
	p.finding("io_uring", r.IOUring)
	p.finding("libcufile", r.CuFile.Library)
	if r.CuFile.Library.Answer == Yes {
		p.finding("cuFile driver", r.CuFile.Driver)
		p.finding("cuFile direct", r.CuFile.Direct)
	}
	if len(r.CuFile.Log) > 0 {
		p.line("cuFile log", "%s", r.CuFile.LogFile)
		for _, line := range r.CuFile.Log {
			p.line("", "%s", line)
		}
	}
	for i := range r.FileSystems {
		if f := &r.FileSystems[i]; f.CuFile.Answer != "" {
			p.finding("cuFile", f.CuFile.of(f.Dir))
		}
	}
	p.end()
	p.Gap()
	t := &present.Table{Head: []string{"directory", "type", "size", "free", "writable", "O_DIRECT", ""}, Right: "  rr", Prose: true}
	for i := range r.FileSystems {
		f := &r.FileSystems[i]
		var why []string
		if f.Usable.Reason != "" {
			why = append(why, f.Usable.why())
		}
		if f.DirectIO.Reason != "" {
			why = append(why, "O_DIRECT: "+f.DirectIO.why())
		}
		t.Row(f.Dir, orDash(f.Type), present.Bytes(f.TotalBytes), present.Bytes(f.FreeBytes), string(f.Usable.Answer), string(f.DirectIO.Answer), strings.Join(why, "; "))
	}
	p.Table(t)
}

func (p *printer) paths(r *Report) {
	p.Heading("Paths")
	t, without := &present.Table{Prose: true}, &present.Table{Prose: true}
	for i := range r.Paths {
		path := &r.Paths[i]
		f := path.Available
		if f == r.NVIDIA.Driver && f.Answer != Yes {
			without.Row(path.Name, path.What)
			continue
		}
		t.Row(path.Name, string(f.Answer), path.What)
		if before := p.printedAs[f]; before != "" {
			t.Row("", "", "see "+before+" above")
			continue
		}
		if f.Reason != "" {
			t.Row("", "", f.why())
			p.printedAs[f] = path.Name
		}
		if f.Answer != Yes && f.Remedy != "" {
			t.Row("", "", "needs: "+f.Remedy)
		}
	}
	p.Table(t)
	if len(without.Rows) > 0 {
		p.Gap()
		p.Text("  Not available without the CUDA driver (see above):")
		p.Table(without)
	}
}

func (p *printer) required(r *Report) {
	if len(r.Required) == 0 {
		return
	}
	p.begin("Required")
	for i := range r.Required {
		p.finding(r.Required[i].Name, r.Required[i].Available)
	}
	p.end()
}

// count formats a limit.
func count(n uint64) string {
	if n > math.MaxInt64 {
		return "unlimited"
	}
	return present.Count(int64(n))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
