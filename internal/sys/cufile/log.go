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

// logTail is how much of the end of the log is looked at.
const logTail = 64 << 10

// LogFile returns where the library writes its log, as its documentation says: CUFILE_LOGFILE_PATH, or cufile.log in the
// folder that its configuration names as "logging": "dir", or else in the working directory. The library looks when it is
// loaded, so this is for the process itself, which has not changed either since.
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

// logDir returns the folder of the log that a configuration names, or ".". The file is JSON with comments from // to the end
// of a line.
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

// withoutComment drops a comment of a line, but not the slashes of a string.
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

// LogReasons returns the last n lines of the log at name in which a process tells of a failure, the oldest first; none where there
// is no log.
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
	// "22-11-2026 14:13:42:66 [pid=17954 tid=17954] ERROR  cufio_core:1104 cuFile initialization failed"
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
