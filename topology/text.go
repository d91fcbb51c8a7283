package topology

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// columns is the maximum width of a line.
const columns = 80

// WriteText writes the machine as a tree and lists, 80 columns wide. It returns the error of w.
func (m *Machine) WriteText(w io.Writer) error {
	var p printer
	for _, t := range m.trees() {
		p.wrap("", "    ", t.title())
		p.tree(m, t, "")
	}
	p.links(m)
	if len(m.NICs) > 0 {
		p.line("\nMemory, and the NICs nearest to it")
		for i := range m.Memory {
			p.memory(&m.Memory[i])
		}
	}
	if len(m.Notes) > 0 {
		p.line("")
	}
	for _, n := range m.Notes {
		p.wrap("", "  ", n)
	}
	if _, err := io.WriteString(w, p.b.String()); err != nil {
		return fmt.Errorf("write topology: %w", err)
	}
	return nil
}

type printer struct{ b strings.Builder }

func (p *printer) line(s string) { p.b.WriteString(strings.TrimRight(s, " ") + "\n") }

// wrap prints s in lines of at most columns. first begins the first line, next the following lines.
func (p *printer) wrap(first, next, s string) {
	at := first
	for word := range strings.FieldsSeq(s) {
		if at != first && len([]rune(at))+len(word) > columns {
			p.line(at)
			at = next
		}
		at += word + " "
	}
	p.line(at)
}

func (p *printer) tree(m *Machine, b *branch, indent string) {
	if b.depth == 0 && len(b.below) == 0 {
		p.line("└─ no GPU and no RDMA NIC")
	}
	for i, c := range b.below {
		mark, next := "├─ ", "│  "
		if i == len(b.below)-1 {
			mark, next = "└─ ", "   "
		}
		switch {
		case c.gpu >= 0:
			g := &m.GPUs[c.gpu]
			name := g.title()
			if g.Index >= 0 {
				name = fmt.Sprintf("%-8s %s", name, g.PCI)
			}
			p.wrap(indent+mark+name+"  ", indent+next+"  ", g.model())
		case c.nic != nil:
			p.line(fmt.Sprintf("%s%-8s %s", indent+mark, c.nic.Name, c.nic.where()))
		default:
			p.line(indent + mark + c.title())
			p.tree(m, c, indent+next)
		}
	}
}

// where returns the NIC's address, and its state if it is down.
func (n *NIC) where() string {
	s := n.PCI
	if s == "" {
		s = "on no bus"
	}
	if n.Down {
		s += ", no active port"
	}
	return s
}

// links prints the NVLink peers of each GPU, grouped by the number of links.
func (p *printer) links(m *Machine) {
	if len(m.NVLinks) > 0 {
		p.line("\nNVLink")
	}
	for i := range m.GPUs {
		peers := make(map[string][]string)
		var kinds []string
		for _, l := range m.NVLinks {
			if l.A != i && l.B != i {
				continue
			}
			kind := l.title()
			if !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
			peers[kind] = append(peers[kind], strings.TrimPrefix(m.GPUs[l.A+l.B-i].title(), "GPU "))
		}
		for _, kind := range kinds {
			p.wrap(fmt.Sprintf("  %-8s ", m.GPUs[i].title()), "           ", fmt.Sprintf("%s to GPU %s", kind, strings.Join(peers[kind], ", ")))
		}
	}
}

// title returns a text with the number of links, for example "18 links by switch".
func (l *NVLink) title() string {
	s := "links"
	if l.Links == 1 {
		s = "1 link"
	} else if l.Links > 1 {
		s = fmt.Sprintf("%d links", l.Links)
	}
	if l.Switch {
		s += " by switch"
	}
	return s
}

func (p *printer) memory(m *Memory) {
	join := func(all []Candidate) string {
		var names []string
		for _, c := range all {
			names = append(names, c.Name)
		}
		return strings.Join(names, ", ")
	}
	if len(m.Preferred) == 0 {
		p.line(fmt.Sprintf("  %-8s no NIC has an active port", m.Location))
		return
	}
	p.wrap(fmt.Sprintf("  %-8s ", m.Location), "           ", fmt.Sprintf("%s: %s", join(m.Preferred), m.Preferred[0].Reason))
	if len(m.Available) > 0 {
		p.wrap("           then ", "           ", join(m.Available))
	}
}
