package mooncake

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// maxKeys is how many keys a MetadataServer keeps.
const maxKeys = 1 << 16

// MetadataServer is a metadata server over HTTP, in memory: an http.Handler for /metadata?key=KEY with GET, PUT and DELETE. What is put
// over something replaces it. Whoever reaches it may change it. Its zero value is empty and ready for use.
type MetadataServer struct {
	mu    sync.Mutex
	texts map[string][]byte
}

// ServeHTTP implements http.Handler.
func (m *MetadataServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimSpace(r.URL.Query().Get("key"))
	switch {
	case r.URL.Path != "/metadata":
		http.Error(w, "only /metadata is here", http.StatusNotFound)
		return
	case key == "":
		http.Error(w, "metadata key is required", http.StatusBadRequest)
		return
	}
	var code int
	var text []byte
	switch r.Method {
	case http.MethodGet:
		text, code = m.get(key)
	case http.MethodPut:
		code = m.put(key, http.MaxBytesReader(w, r.Body, maxFrame))
	case http.MethodDelete:
		code = m.delete(key)
	default:
		code = http.StatusMethodNotAllowed
	}
	if code != http.StatusOK {
		http.Error(w, http.StatusText(code), code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // who does not take it asks again
}

func (m *MetadataServer) get(key string) ([]byte, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	text, ok := m.texts[key]
	if !ok {
		return nil, http.StatusNotFound
	}
	return text, http.StatusOK
}

func (m *MetadataServer) put(key string, body io.Reader) int {
	text, err := io.ReadAll(body)
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		return http.StatusRequestEntityTooLarge
	}
	if err != nil {
		return http.StatusBadRequest
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.texts[key]; !ok && len(m.texts) >= maxKeys {
		return http.StatusInsufficientStorage
	}
	if m.texts == nil {
		m.texts = make(map[string][]byte)
	}
	m.texts[key] = text
	return http.StatusOK
}

func (m *MetadataServer) delete(key string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.texts[key]; !ok {
		return http.StatusNotFound
	}
	delete(m.texts, key)
	return http.StatusOK
}
