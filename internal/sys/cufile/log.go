package cufile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// logTail is the number of bytes at the end of the log that are searched.
const logTail = 64 << 10

// LogFile returns the documented path of the library's log: CUFILE_LOGFILE_PATH, or cufile.log in
// the folder "logging": "dir" of its configuration, or in the working directory. The library reads
// these when it is loaded, so the process must not have changed them since.
func LogFile() string {
	if p := os.Getenv("CUFILE_LOGFILE_PATH"); p != "" {
		return p
	}
	config := os.Getenv("CUFILE_ENV_PATH_JSON")
	if config == "" {
		config = "/etc/cufile.json"
	}
	dir := "."
	if b, err := os.ReadFile(config); err == nil {
		dir = logDir(b)
	}
	return filepath.Join(dir, "cufile.log")
}

// logDir returns the folder of the log in a configuration, or ".". The file is JSON with comments
// from // to the end of a line.
func logDir(config []byte) string {
	var clean bytes.Buffer
	for line := range bytes.Lines(config) {
		clean.Write(withoutComment(line))
	}
	var c struct {
		Logging struct {
			Dir string `json:"dir"`
		} `json:"logging"`
	}
	if err := json.Unmarshal(clean.Bytes(), &c); err != nil || c.Logging.Dir == "" {
		return "."
	}
	return c.Logging.Dir
}

// withoutComment removes the comment of a line, but not slashes in a string.
func withoutComment(line []byte) []byte {
	quoted := false
	for i, c := range line {
		switch {
		case c == '"' && (i == 0 || line[i-1] != '\\'):
			quoted = !quoted
		case c == '/' && !quoted && i+1 < len(line) && line[i+1] == '/':
			return append(line[:i:i], '\n')
		}
	}
	return line
}

// LogReasons returns the last n lines of the log in which a process reports a failure, oldest
// first. It returns nil if there is no log.
func LogReasons(name string, pid, n int) []string {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // it was only read
	if info, err := f.Stat(); err == nil && info.Size() > logTail {
		if _, err := f.Seek(-logTail, io.SeekEnd); err != nil {
			return nil
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, 2*logTail))
	if err != nil {
		return nil
	}
	// "22-11-2026 14:13:42:66 [pid=17954 tid=17954] ERROR cufio_core:1104 cuFile initialization
	// failed"
	mark := fmt.Sprintf("[pid=%d ", pid)
	var reasons []string
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if bad := strings.Contains(line, "] ERROR ") || strings.Contains(line, "] WARN "); bad && strings.Contains(line, mark) {
			reasons = append(reasons, line)
		}
	}
	return reasons[max(len(reasons)-n, 0):]
}
