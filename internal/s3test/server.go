package s3test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlane/kvlane/internal/testkit"
)

// Names of environment variables: the binary of versitygw, and the Python environment with moto.
const (
	VersityEnv = "KVLANE_VERSITYGW"
	MotoEnv    = "KVLANE_MOTO"
)

// The credentials of all servers.
const (
	AccessKey = "kvlane"
	SecretKey = "kvlane-secret"
)

// Bucket is the bucket of all servers.
const Bucket = "blocks"

// Server is a server that a test stops and starts. Its address and its objects stay the same.
type Server struct {
	Name string // "versitygw" or "moto"
	Addr string // HOST:PORT
	Dir  string // the objects of versitygw: DIR/Bucket/NAME

	env, binary string
	args        []string
	cmd         *exec.Cmd
	output      bytes.Buffer
}

// URL returns the endpoint.
func (s *Server) URL() string { return "http://" + s.Addr }

// Setenv sets the environment variables with the credentials of the servers until the end of the
// test.
func Setenv(tb testing.TB) {
	tb.Helper()
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": AccessKey, "AWS_SECRET_ACCESS_KEY": SecretKey, "AWS_EC2_METADATA_DISABLED": "true",
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
	} {
		tb.Setenv(name, value)
	}
}

// Start starts the server with a name and an empty bucket, and stops it at the end of the test. It
// skips the test if the server is not installed.
func Start(tb testing.TB, name string) *Server {
	tb.Helper()
	s := &Server{Name: name, Addr: freeAddr(tb)}
	_, port, _ := net.SplitHostPort(s.Addr)
	switch name {
	case "versitygw":
		s.env, s.binary = VersityEnv, os.Getenv(VersityEnv)
		s.Dir = tb.TempDir()
		s.args = []string{"--port", s.Addr, "--access", AccessKey, "--secret", SecretKey, "--quiet", "posix", s.Dir}
		if err := os.Mkdir(filepath.Join(s.Dir, Bucket), 0o700); err != nil {
			tb.Fatal(err)
		}
	case "moto":
		s.env, s.binary = MotoEnv, ""
		if dir := os.Getenv(MotoEnv); dir != "" {
			s.binary = filepath.Join(dir, "bin", "moto_server")
		}
		s.args = []string{"-H", "127.0.0.1", "-p", port}
	}
	if s.binary == "" {
		testkit.Skip(tb, name, s.env+` is not set; "make object" sets it`)
	}
	tb.Cleanup(s.Stop)
	s.Start(tb)
	if name == "moto" { // it does not check credentials
		request, err := http.NewRequestWithContext(tb.Context(), http.MethodPut, s.URL()+"/"+Bucket, http.NoBody)
		if err != nil {
			tb.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			tb.Fatal(err)
		}
		_ = answer.Body.Close()
		http.DefaultClient.CloseIdleConnections()
	}
	return s
}

// Start starts the server again after Stop, and waits until it accepts connections. The server of
// moto is then empty.
func (s *Server) Start(tb testing.TB) {
	tb.Helper()
	cmd := exec.CommandContext(context.Background(), s.binary, s.args...)
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	s.cmd = cmd
	for end := time.Now().Add(testkit.Patience()); ; time.Sleep(5 * time.Millisecond) {
		c, err := new(net.Dialer).DialContext(context.Background(), "tcp", s.Addr)
		if err == nil {
			_ = c.Close()
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("%s does not start: %v", s.Name, err)
		}
	}
}

// Stop kills the server.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it was killed
	s.cmd = nil
}

// Pause suspends the server until Resume. It waits until all threads have stopped.
func (s *Server) Pause() {
	_ = s.cmd.Process.Signal(syscall.SIGSTOP)
	for end := time.Now().Add(testkit.Patience()); time.Now().Before(end); time.Sleep(time.Millisecond) {
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.cmd.Process.Pid))
		running := slices.ContainsFunc(stats, func(name string) bool {
			stat, err := os.ReadFile(name)
			return err == nil && !bytes.Contains(stat, []byte(") T "))
		})
		if !running {
			return
		}
	}
}

// Resume ends Pause.
func (s *Server) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Path returns the file of an object of versitygw.
func (s *Server) Path(name string) string { return filepath.Join(s.Dir, Bucket, name) }

// FlipBit changes a bit in the file of an object of versitygw, as a defective disk does: the ETag
// stays the same.
func (s *Server) FlipBit(tb testing.TB, name string, offset int64) {
	tb.Helper()
	f, err := os.OpenFile(s.Path(name), os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], offset)
	if err == nil {
		b[0] ^= 4
		_, err = f.WriteAt(b[:], offset)
	}
	if cerr := f.Close(); err != nil || cerr != nil {
		tb.Fatal(fmt.Errorf("flip a bit of %s: %w %w", name, err, cerr))
	}
}

// freeAddr returns an address that no server listens on.
func freeAddr(tb testing.TB) string {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// Objects returns the names of all objects of versitygw.
func (s *Server) Objects(tb testing.TB) (names []string) {
	tb.Helper()
	root := filepath.Join(s.Dir, Bucket)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return names
}
