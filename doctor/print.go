package doctor

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
)

// WriteText writes the report for people. It returns the writer's error.
func (r *Report) WriteText(w io.Writer) error {
	p := &printer{}
	p.host(r)
	p.nvidia(&r.NVIDIA)
	p.rdma(&r.RDMA)
	p.storage(r)
	p.paths(r)
	p.required(r)
	if _, err := io.WriteString(w, p.b.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

type printer struct{ b strings.Builder }

func (p *printer) line(format string, args ...any) { fmt.Fprintf(&p.b, format+"\n", args...) }

// finding prints one answer under a title, the reason and the remedy where there are any.
func (p *printer) finding(title string, f Finding) {
	p.line("  %-18s %s", title, f.inline())
	if f.Answer != Yes && f.Remedy != "" {
		p.line("  %-18s   needs: %s", "", f.Remedy)
	}
}

func (f Finding) inline() string {
	if f.Reason == "" {
		return string(f.Answer)
	}
	return string(f.Answer) + ": " + f.Reason
}

func (p *printer) host(r *Report) {
	h := &r.Host
	p.line("Machine")
	p.line("  %-18s %s", "kernel", h.Kernel)
	p.line("  %-18s %d", "CPUs", h.CPUs)
	if h.NUMANodes > 0 {
		p.line("  %-18s %d", "NUMA nodes", h.NUMANodes)
	}
	p.line("  %-18s %s, %s available", "memory", bytesText(h.MemoryBytes), bytesText(h.AvailableBytes))
	if len(r.HugePages) == 0 {
		p.line("  %-18s none", "huge pages")
	}
	for _, hp := range r.HugePages {
		p.line("  %-18s %d of %s, %d free", "huge pages", hp.Total, bytesText(hp.SizeBytes), hp.Free)
	}
	p.finding("locked memory", r.LockedMem.Enough)
	shm := &r.SharedMem
	if shm.Usable.Answer == Yes {
		p.line("  %-18s %s, %s free", "/dev/shm", bytesText(shm.TotalBytes), bytesText(shm.FreeBytes))
	} else {
		p.finding("/dev/shm", shm.Usable)
	}
}

func (p *printer) nvidia(n *NVIDIA) {
	p.line("\nGPUs")
	p.finding("CUDA driver", n.Driver)
	if n.DriverVersion != "" {
		p.line("  %-18s %s", "driver version", n.DriverVersion)
	}
	if n.KernelModule != "" {
		p.line("  %-18s %s", "kernel module", n.KernelModule)
	}
	for i := range n.GPUs {
		p.gpu(&n.GPUs[i])
	}
	// A GPU on the bus that the driver offers was described above.
	if len(n.GPUs) == 0 {
		for i := range n.OnBus {
			p.line("  %-18s %s", "on the PCI bus", n.OnBus[i].text())
		}
	}
	for i := range n.Peers {
		peer := &n.Peers[i]
		title := fmt.Sprintf("GPU %d -> GPU %d", peer.From, peer.To)
		p.finding(title, peer.Access)
		if peer.Link != "" {
			p.line("  %-18s   over %s", "", peer.Link)
		}
	}
}

func (p *printer) gpu(g *GPU) {
	p.line("  %-18s %s, %s, compute %s, %d multiprocessors, %d copy engines", fmt.Sprintf("GPU %d", g.Index), g.Name, bytesText(g.MemoryBytes),
		g.Compute, g.Multiprocs, g.CopyEngines)
	p.line("  %-18s   %s", "", g.UUID)
	if g.PCI.Address != "" {
		p.line("  %-18s   %s", "", g.PCI.text())
	}
	if g.NUMANode >= 0 {
		p.line("  %-18s   NUMA node %d", "", g.NUMANode)
	}
	if g.Usable.Answer != Yes {
		p.finding("  usable", g.Usable)
		return
	}
	p.finding("  paths", g.Probe.summary())
	p.finding("  path profile", g.Profile)
	p.finding("  NIC", g.NIC)
	p.finding("  dma-buf", g.DMABuf)
	for _, s := range g.Sharing {
		p.finding("  share "+s.Handle, s.Works)
	}
}

// summary says in one line which paths a GPU has: yes for all of them, or those that it lacks.
func (p *Probe) summary() Finding {
	var lacks []string
	for _, a := range p.abilities() {
		if f := *a.found; f.Answer != Yes {
			lacks = append(lacks, a.name+" ("+f.inline()+")")
		}
	}
	if len(lacks) == 0 {
		return Finding{Answer: "all", Reason: "each was tried, and checksums on the way"}
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
	p.line("\nRDMA")
	if len(r.Devices) == 0 {
		p.line("  %-18s none", "devices")
	}
	for i := range r.Devices {
		d := &r.Devices[i]
		p.line("  %-18s firmware %s, NUMA node %d", d.Name, orDash(d.Firmware), d.NUMANode)
		for j := range d.Ports {
			port := &d.Ports[j]
			p.line("  %-18s   port %d: %s, %s, %s", "", port.Number, port.State, port.LinkLayer, orDash(port.Rate))
			for _, g := range port.GIDs {
				p.line("  %-18s     GID %d: %s %s", "", g.Index, g.GID, g.Type)
			}
		}
	}
	p.finding("libibverbs", r.Library)
	if len(r.Devices) > 0 {
		p.finding("GPU peer memory", r.PeerMemory)
		p.line("  %-18s kvlane topo shows them beside GPUs and memory", "where they lie")
	}
}

func (p *printer) storage(r *Report) {
	p.line("\nStorage")
	p.finding("io_uring", r.IOUring)
	p.finding("libcufile", r.CuFile.Library)
	if r.CuFile.Library.Answer == Yes {
		p.finding("cuFile driver", r.CuFile.Driver)
		p.finding("cuFile direct", r.CuFile.Direct)
	}
	if len(r.CuFile.Log) > 0 {
		p.line("  %-18s %s", "cuFile log", r.CuFile.LogFile)
		for _, line := range r.CuFile.Log {
			p.line("  %-18s   %s", "", line)
		}
	}
	tw := tabwriter.NewWriter(&p.b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  directory\ttype\tsize\tfree\twritable\tO_DIRECT")
	for i := range r.FileSystems {
		f := &r.FileSystems[i]
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\t%s\n", f.Dir, orDash(f.Type), bytesText(f.TotalBytes), bytesText(f.FreeBytes), f.Usable.inline(), f.DirectIO.inline())
	}
	_ = tw.Flush() // into memory: it cannot fail
	for i := range r.FileSystems {
		if f := &r.FileSystems[i]; f.CuFile.Answer != "" {
			p.finding("cuFile", Finding{Answer: f.CuFile.Answer, Reason: f.Dir + ": " + f.CuFile.Reason, Remedy: f.CuFile.Remedy})
		}
	}
}

func (p *printer) paths(r *Report) {
	p.line("\nPaths")
	tw := tabwriter.NewWriter(&p.b, 0, 0, 2, ' ', 0)
	for i := range r.Paths {
		path := &r.Paths[i]
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", path.Name, path.Available.Answer, path.What)
		if path.Available == r.NVIDIA.Driver && path.Available.Answer != Yes {
			fmt.Fprintf(tw, "  \t\t  as the CUDA driver above\n")
			continue
		}
		if path.Available.Reason != "" {
			fmt.Fprintf(tw, "  \t\t  %s\n", path.Available.Reason)
		}
		if path.Available.Answer != Yes && path.Available.Remedy != "" {
			fmt.Fprintf(tw, "  \t\t  needs: %s\n", path.Available.Remedy)
		}
	}
	_ = tw.Flush() // into memory: it cannot fail
	p.line("  not in this version: %s", strings.Join(r.NotInThisVersion, ", "))
}

func (p *printer) required(r *Report) {
	if len(r.Required) > 0 {
		p.line("\nRequired")
	}
	for i := range r.Required {
		p.finding(r.Required[i].Name, r.Required[i].Available)
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// bytesText gives a size as people write it, to one decimal: "8.0 KiB", "79.2 GiB".
func bytesText(n int64) string {
	if n < 0 {
		return "-"
	}
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if v == math.Trunc(v) {
		return fmt.Sprintf("%.0f %s", v, units[i])
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
