package metadata_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/internal/testkit"
	"github.com/kvlane/kvlane/metadata"
)

// text returns a list in the syntax of ParseMembers.
func text(t *testing.T, m metadata.Members) string {
	t.Helper()
	list, _ := m.List()
	s, err := metadata.NewStaticMembers(list)
	if err != nil {
		t.Fatal(err)
	}
	return s.String()
}

// becomes waits until the list is want, and checks that each change was announced.
func becomes(t *testing.T, m metadata.Members, want string, change func()) {
	t.Helper()
	_, changed := m.List()
	change()
	select {
	case <-changed:
	case <-time.After(testkit.Patience()):
		t.Fatalf("the list %s does not become %s", text(t, m), want)
	}
	if got := text(t, m); got != want {
		t.Fatalf("the list became %s, not %s", got, want)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testkit.Patience()); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the condition was not met in time")
		}
	}
}

// replace replaces a file at once.
func replace(t *testing.T, path, content string) {
	t.Helper()
	err := os.WriteFile(path+".new", []byte(content), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestFileMembers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "members")
	if _, err := metadata.OpenFileMembers(path, 0); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("a missing file: %v", err)
	}
	replace(t, path, "# servers\n\nb:2=3  # heavy\na:1\r\n")
	if _, err := metadata.OpenFileMembers(path, -1); !errors.Is(err, errdefs.ErrInvalid) {
		t.Errorf("a negative interval: %v", err)
	}
	m, err := metadata.OpenFileMembers(path, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, m); got != "a:1,b:2=3" {
		t.Error(got)
	}
	becomes(t, m, "c:3", func() { replace(t, path, "c:3") })
	// A list that is not valid, and a missing file, leave the list as it is.
	for _, content := range []string{"c:3\nc:3\n", "", "# none\n", "c:3 d:4\n", strings.Repeat("#", 1<<20+1), strings.Repeat("a:1\n", 1<<10+1)} {
		replace(t, path, content)
		waitFor(t, func() bool { return m.Err() != nil })
		if err := m.Err(); !errors.Is(err, errdefs.ErrInvalid) || text(t, m) != "c:3" {
			t.Errorf("%.20q: %v, %s", content, err, text(t, m))
		}
		replace(t, path, "c:3")
		waitFor(t, func() bool { return m.Err() == nil })
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return errors.Is(m.Err(), fs.ErrNotExist) })
	becomes(t, m, "d:4", func() { replace(t, path, "d:4\n") })
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := text(t, m); got != "d:4" {
		t.Errorf("after Close: %s", got)
	}
}

// nameServer is a DNS server with one answer for each name and type of record.
type nameServer struct {
	mu      sync.Mutex
	answers map[string][][]byte // by name and type; the contents of the records
	fails   bool
}

func (s *nameServer) set(fails bool, answers map[string][][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails, s.answers = fails, answers
}

// serve answers queries until the connection is closed.
func (s *nameServer) serve(conn net.PacketConn) {
	b := make([]byte, 1<<10)
	for {
		n, from, err := conn.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(s.answer(b[:n]), from) // the client asks again
	}
}

var recordTypes = map[uint16]string{1: "A", 28: "AAAA", 33: "SRV"}

// answer returns the response to a query of one question.
func (s *nameServer) answer(query []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	var labels []string
	end := 12
	for query[end] != 0 {
		n := int(query[end])
		labels = append(labels, string(query[end+1:end+1+n]))
		end += n + 1
	}
	end += 5 // the last label, type and class
	kind := recordTypes[binary.BigEndian.Uint16(query[end-4:])]
	records := s.answers[strings.Join(labels, ".")+" "+kind]
	out := append([]byte(nil), query[:end]...)
	copy(out[2:12], []byte{0x81, 0x80, 0, 1, 0, byte(len(records)), 0, 0, 0, 0})
	if s.fails {
		out[3], out[7] = 0x82, 0 // SERVFAIL
		return out
	}
	for _, r := range records {
		out = append(out, 0xc0, 12)                    // the name of the question
		out = append(out, query[end-4:end]...)         // type and class
		out = append(out, 0, 0, 0, 0, 0, byte(len(r))) // time to live, length
		out = append(out, r...)
	}
	return out
}

// srv returns the content of an SRV record.
func srv(priority, weight, port uint16, host string) []byte {
	b := binary.BigEndian.AppendUint16(nil, priority)
	b = binary.BigEndian.AppendUint16(b, weight)
	b = binary.BigEndian.AppendUint16(b, port)
	for label := range strings.SplitSeq(host, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0)
}

func TestDNSMembers(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := new(nameServer)
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.serve(conn)
	}()
	defer func() {
		_ = conn.Close() // the server ends
		<-done
	}()
	o := metadata.DNSOptions{Interval: 5 * time.Millisecond, Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}}
	first := map[string][][]byte{
		"kv.example A":              {{10, 0, 0, 2}, {10, 0, 0, 1}, {10, 0, 0, 2}},
		"six.example AAAA":          {{0xfd, 15: 1}},
		"_rpc._tcp.kv.example SRV":  {srv(1, 5, 80, "b.kv.example"), srv(1, 3, 80, "b.kv.example"), srv(1, 0, 81, "a.kv.example"), srv(2, 9, 82, "spare.kv.example")},
		"_none._tcp.kv.example SRV": nil,
	}
	server.set(false, maps.Clone(first))
	for _, name := range []string{"", "kv.example", ":80", "kv.example:0", "_none._tcp.kv.example", "none.example:80"} {
		if m, err := metadata.OpenDNSMembers(t.Context(), name, o); err == nil {
			t.Errorf("%q: members %s", name, text(t, m))
		}
	}
	host, err := metadata.OpenDNSMembers(t.Context(), "kv.example:80", o)
	if err != nil {
		t.Fatal(err)
	}
	service, err := metadata.OpenDNSMembers(t.Context(), "_rpc._tcp.kv.example", o)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, host); got != "10.0.0.1:80,10.0.0.2:80" {
		t.Error(got)
	}
	if got := text(t, service); got != "a.kv.example:81,b.kv.example:80=3" {
		t.Error(got)
	}
	six, err := metadata.OpenDNSMembers(t.Context(), "six.example:80", o)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, six); got != "[fd00::1]:80" {
		t.Error(got)
	}
	if err := six.Close(); err != nil {
		t.Error(err)
	}
	defer func(r *net.Resolver) { net.DefaultResolver = r }(net.DefaultResolver)
	net.DefaultResolver = o.Resolver
	named, err := metadata.OpenMembers(t.Context(), "dns+srv://_rpc._tcp.kv.example")
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, named); got != "a.kv.example:81,b.kv.example:80=3" {
		t.Error(got)
	}
	if err := named.Close(); err != nil {
		t.Error(err)
	}
	// A service without servers has an empty list at first.
	empty, err := metadata.OpenMembers(t.Context(), "dns+srv://_none._tcp.kv.example")
	if err != nil {
		t.Fatal(err)
	}
	if list, _ := empty.List(); len(list) > 0 || empty.Err() == nil {
		t.Errorf("a service without servers: %v, %v", list, empty.Err())
	}
	if err := empty.Close(); err != nil {
		t.Error(err)
	}
	late := o
	late.Patient = true
	later, err := metadata.OpenDNSMembers(t.Context(), "_late._tcp.kv.example", late)
	if err != nil {
		t.Fatal(err)
	}
	becomes(t, later, "b.kv.example:80=4", func() {
		first["_late._tcp.kv.example SRV"] = [][]byte{srv(1, 4, 80, "b.kv.example")}
		server.set(false, maps.Clone(first))
	})
	if err := errors.Join(later.Err(), later.Close()); err != nil {
		t.Error(err)
	}
	// The host has addresses of one type: a lookup asks for each type, and may do so before and after
	// the change.
	becomes(t, host, "10.0.0.3:80", func() {
		server.set(false, map[string][][]byte{
			"kv.example A":             {{10, 0, 0, 3}},
			"_rpc._tcp.kv.example SRV": first["_rpc._tcp.kv.example SRV"],
		})
	})
	// While lookups fail or find nothing, the list stays.
	for _, fails := range []bool{true, false} {
		server.set(fails, nil)
		waitFor(t, func() bool { return host.Err() != nil && service.Err() != nil })
		if got := text(t, host) + " " + text(t, service); got != "10.0.0.3:80 a.kv.example:81,b.kv.example:80=3" {
			t.Error(got)
		}
	}
	if st := host.ListStats(); st.Failures == 0 || st.Changes != 1 || st.Reads <= st.Failures {
		t.Errorf("counters %+v", st)
	}
	becomes(t, service, "b.kv.example:80=4", func() {
		server.set(false, map[string][][]byte{"_rpc._tcp.kv.example SRV": {srv(1, 4, 80, "b.kv.example")}})
	})
	if err := errors.Join(host.Close(), service.Close()); err != nil {
		t.Error(err)
	}
}
