package golden

import (
	"fmt"
	"slices"
	"strings"
)

// Text returns the capture in the format that Load reads, without comments about frames.
func (c *Capture) Text() string {
	var b strings.Builder
	var order []string
	for _, s := range c.Order {
		order = append(order, s.String())
	}
	fmt.Fprintf(&b, "# %s\n# %s\n# client: %s\n# server: %s\n# outcome: %s\n# order: %s\n",
		c.Name, c.About, c.Client, c.Server, c.Outcome, strings.Join(order, "; "))
	for _, d := range c.Directions {
		fmt.Fprintf(&b, "\n## %s.%s: %d bytes\n", d.Conn, direction(d.ToServer), len(d.Bytes))
		at := 0
		for line := range slices.Chunk(d.Bytes, 16) {
			text := strings.TrimRight(strings.Map(printable, string(latin(line))), " ")
			b.WriteString(strings.TrimRight(fmt.Sprintf("%06x  % -48x %s", at, line, text), " ") + "\n")
			at += len(line)
		}
	}
	return b.String()
}

// String returns the segment as it is in the order line of a file.
func (s Segment) String() string {
	size := fmt.Sprint(s.Bytes)
	if s.End {
		size = "EOF"
	}
	return fmt.Sprintf("%.4f %s %s %s", s.Seconds, s.Conn, direction(s.ToServer), size)
}

func direction(toServer bool) string {
	if toServer {
		return "c2s"
	}
	return "s2c"
}

// latin returns a rune for each byte.
func latin(b []byte) []rune {
	out := make([]rune, len(b))
	for i, c := range b {
		out[i] = rune(c)
	}
	return out
}

func printable(r rune) rune {
	if r < ' ' || r > '~' {
		return '.'
	}
	return r
}
