// Package golden reads and writes the captures of real peers of baidu_std in rpc/testdata.
package golden

import (
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Capture is one recorded case.
type Capture struct {
	Dir, Name, About, Client, Server, Outcome string // Dir is the last part of the folder's name
	Order                                     []Segment
	Directions                                []*Direction // in the order of the file
}

// Segment is a part of a connection's bytes in the order of arrival.
type Segment struct {
	Seconds  float64
	Conn     string // "" in the capture that names none
	ToServer bool
	Bytes    int // 0 at the end of the direction
	End      bool
}

// Direction is one direction of a connection.
type Direction struct {
	Conn     string
	ToServer bool
	Bytes    []byte
	Cut      bool     // the capture has only the first bytes
	Frames   []string // the comment of each frame
}

// Sent returns the bytes of a direction, or nil.
func (c *Capture) Sent(conn string, toServer bool) []byte {
	for _, d := range c.Directions {
		if d.Conn == conn && d.ToServer == toServer {
			return d.Bytes
		}
	}
	return nil
}

// Conns returns the names of the connections.
func (c *Capture) Conns() []string {
	names := make(map[string]bool)
	for _, d := range c.Directions {
		names[d.Conn] = true
	}
	return slices.Sorted(maps.Keys(names))
}

var (
	title   = regexp.MustCompile(`^## (?:(\w+)\.)?(c2s|s2c|small replies): (\d+) bytes(.*)$`)
	segment = regexp.MustCompile(`^([\d.]+) (?:(\w+) )?(c2s|s2c) (\d+|EOF)$`)
)

// Load reads all captures in the folders. It fails the test for a malformed file, and for a folder
// without captures.
func Load(tb testing.TB, dirs ...string) []*Capture {
	tb.Helper()
	var list []string
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.hex"))
		if err != nil || len(files) == 0 {
			tb.Fatalf("%d captures in %s, %v", len(files), dir, err)
		}
		list = append(list, files...)
	}
	var all []*Capture
	for _, f := range list {
		text, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		c, err := parse(strings.TrimSuffix(filepath.Base(f), ".hex"), string(text))
		if err != nil {
			tb.Fatalf("%s: %v", f, err)
		}
		c.Dir = filepath.Base(filepath.Dir(f))
		all = append(all, c)
	}
	return all
}

func parse(name, text string) (*Capture, error) {
	c := &Capture{Name: name}
	var d *Direction
	for i, line := range strings.Split(text, "\n") {
		switch {
		case strings.HasPrefix(line, "## "):
			m := title.FindStringSubmatch(line)
			if m == nil {
				return nil, fmt.Errorf("line %d: %q", i+1, line)
			}
			d = &Direction{Conn: m[1], ToServer: m[2] == "c2s", Cut: m[4] != ""}
			c.Directions = append(c.Directions, d)
		case strings.HasPrefix(line, "#   @"):
			d.Frames = append(d.Frames, line[4:])
		case strings.HasPrefix(line, "# "):
			if err := c.header(i, line[2:]); err != nil {
				return nil, err
			}
		case line != "":
			b, err := hexLine(line, len(d.Bytes))
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", i+1, err)
			}
			d.Bytes = append(d.Bytes, b...)
		}
	}
	return c, nil
}

func (c *Capture) header(line int, text string) error {
	key, value, _ := strings.Cut(text, ": ")
	switch {
	case line == 1:
		c.About = text
	case key == "client":
		c.Client = value
	case key == "server":
		c.Server = value
	case key == "outcome":
		c.Outcome = value
	case key == "order":
		for s := range strings.SplitSeq(value, "; ") {
			if s == "" {
				continue
			}
			m := segment.FindStringSubmatch(s)
			if m == nil {
				return fmt.Errorf("segment %q", s)
			}
			seconds, err := strconv.ParseFloat(m[1], 64)
			if err != nil {
				return err
			}
			n, _ := strconv.Atoi(m[4]) // 0 for EOF
			c.Order = append(c.Order, Segment{seconds, m[2], m[3] == "c2s", n, m[4] == "EOF"})
		}
	}
	return nil
}

// hexLine decodes "OFFSET  HEX TEXT" with up to 16 bytes in columns 8 to 55.
func hexLine(line string, at int) ([]byte, error) {
	if len(line) < 10 {
		return nil, fmt.Errorf("%q is too short", line)
	}
	off, err := strconv.ParseInt(line[:6], 16, 64)
	if err != nil {
		return nil, fmt.Errorf("offset: %w", err)
	}
	if int(off) != at {
		return nil, fmt.Errorf("offset %06x, not %06x", off, at)
	}
	digits := strings.ReplaceAll(line[8:min(len(line), 55)], " ", "")
	return hex.DecodeString(digits)
}
