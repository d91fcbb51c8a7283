// Package mounts reads the kernel's table of mounted file systems.
package mounts

import (
	"io/fs"
	"strconv"
	"strings"
)

// Mount is a line of /proc/mounts.
type Mount struct {
	Source, Dir, Type, Options string
}

// Has reports whether the mount has the option.
func (m Mount) Has(option string) bool {
	for o := range strings.SplitSeq(m.Options, ",") {
		if o == option {
			return true
		}
	}
	return false
}

// Table is the list of mounts of a machine. If several file systems are mounted on one directory,
// only the last one is visible, and Of returns that.
type Table []Mount

// Read returns the mount table. machine is the root of the machine's file system. If the table
// cannot be read, it is empty.
func Read(machine fs.FS) Table {
	text, err := fs.ReadFile(machine, "proc/mounts")
	if err != nil {
		return nil
	}
	var t Table
	at := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 4 {
			continue
		}
		m := Mount{Source: unescape(f[0]), Dir: unescape(f[1]), Type: f[2], Options: f[3]}
		if i, ok := at[m.Dir]; ok {
			t[i] = m
			continue
		}
		at[m.Dir] = len(t)
		t = append(t, m)
	}
	return t
}

// unescape decodes the octal escapes of /proc/mounts: space, tab, newline and backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// Of returns the mount that contains dir, an absolute and clean path.
func (t Table) Of(dir string) Mount {
	var best Mount
	for _, m := range t {
		if Under(dir, m.Dir) && len(m.Dir) >= len(best.Dir) {
			best = m
		}
	}
	return best
}

// Under reports whether dir is equal to of or below it.
func Under(dir, of string) bool {
	return of == "/" || dir == of || strings.HasPrefix(dir, of+"/")
}
