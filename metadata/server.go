package metadata

import (
	"cmp"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/jonboulle/clockwork"
)

// ServerOptions are the options of a Server.
type ServerOptions struct {
	// MaxBytes is the maximum total size of all keys and values. Default 256 MiB.
	MaxBytes int64
	// Clock measures the leases. Default: the system clock.
	Clock clockwork.Clock
}

// Server is a Store and an http.Handler that serves it. It keeps values in memory only: after a
// restart, clients must put their values again.
type Server struct {
	max   int64
	clock clockwork.Clock
	puts  chan struct{} // semaphore: one element for each value that is being received

	mu    sync.Mutex
	all   map[string]entry
	bytes int64
	swept time.Time
}

type entry struct {
	value []byte
	until time.Time // time of expiry; zero: never
}

// entryBytes is the approximate memory of an entry without its key and value.
const entryBytes = 128

// maxPuts is the maximum number of values received concurrently. It limits the memory that slow
// clients use.
const maxPuts = 64

// NewServer returns an empty server.
func NewServer(o ServerOptions) *Server {
	s := &Server{max: cmp.Or(o.MaxBytes, 256<<20), clock: o.Clock, puts: make(chan struct{}, maxPuts), all: make(map[string]entry)}
	if s.clock == nil {
		s.clock = clockwork.NewRealClock()
	}
	return s
}

// Len returns the number of values.
func (s *Server) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(0)
	return len(s.all)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	key := q.Get("key")
	if key == "" || len(key) > MaxKeyBytes {
		http.Error(w, "the key is of 1 to "+strconv.Itoa(MaxKeyBytes)+" bytes", http.StatusBadRequest)
		return
	}
	switch r.Method {
	case http.MethodGet:
		value, ok := s.get(key)
		if !ok {
			http.Error(w, "metadata not found", http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(value) // the client may have disconnected
	case http.MethodPut:
		ttl, err := leaseOf(q.Get("ttl"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case s.puts <- struct{}{}:
			defer func() { <-s.puts }()
		case <-r.Context().Done():
			return
		}
		value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxValueBytes))
		if err != nil {
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		}
		if !s.put(key, value, ttl) {
			http.Error(w, "the store is full", http.StatusInsufficientStorage)
		}
	case http.MethodDelete:
		if !s.drop(key) {
			http.Error(w, "metadata not found", http.StatusNotFound)
		}
	default:
		w.Header().Set("Allow", "GET, PUT, DELETE")
		http.Error(w, "GET, PUT or DELETE", http.StatusMethodNotAllowed)
	}
}

func (s *Server) get(key string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.all[key]
	if !ok || e.over(s.clock.Now()) {
		return nil, false
	}
	return e.value, true
}

func (s *Server) put(key string, value []byte, ttl time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(time.Second)
	more := int64(len(key) + len(value) + entryBytes)
	if old, ok := s.all[key]; ok {
		more -= cost(key, old)
	}
	if s.bytes+more > s.max {
		return false
	}
	e := entry{value: value}
	if ttl > 0 {
		e.until = s.clock.Now().Add(ttl)
	}
	s.all[key] = e
	s.bytes += more
	return true
}

func (s *Server) drop(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.all[key]
	if ok {
		s.remove(key, e)
	}
	return ok && !e.over(s.clock.Now())
}

func (s *Server) remove(key string, e entry) {
	delete(s.all, key)
	s.bytes -= cost(key, e)
}

// sweep removes expired values, at most once per interval every.
func (s *Server) sweep(every time.Duration) {
	now := s.clock.Now()
	if now.Sub(s.swept) < every {
		return
	}
	s.swept = now
	for key, e := range s.all {
		if e.over(now) {
			s.remove(key, e)
		}
	}
}

func (e entry) over(now time.Time) bool { return !e.until.IsZero() && !now.Before(e.until) }

func cost(key string, e entry) int64 { return int64(len(key) + len(e.value) + entryBytes) }
