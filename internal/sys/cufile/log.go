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

// logTail is the number of bytes at the end of the log that LogReasons reads.
const logTail = 64 << 10

// LogFile returns the path of the library's log. It is CUFILE_LOGFILE_PATH, or cufile.log in the
// directory that the configuration names ("logging": "dir"), or in the working directory. The
// library reads the variables when it is loaded, so they must not have changed since.
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

// logDir returns the directory of the log as set in a configuration, or ".". The configuration is
// JSON with comments from // to the end of the line.
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

// withoutComment removes the comment of a line. It ignores // in strings.
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

// LogReasons returns the last n lines of the log that report a failure of process pid, oldest
// first. It returns nil if there is no log.
func LogReasons(name string, pid, n int) []string {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // the file was only read
	if info, err := f.Stat(); err == nil && info.Size() > logTail {
		if _, err := f.Seek(-logTail, io.SeekEnd); err != nil {
			return nil
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, 2*logTail))
	if err != nil {
		return nil
	}
	// Format of a line: "22-11-2026 14:13:42:66 [pid=17954 tid=17954] ERROR cufio_core:1104 cuFile
	// initialization failed"
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
