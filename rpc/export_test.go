package rpc

// Decompress is decompress.
var Decompress = decompress

// LiveStreams returns the number of streams of the connection of s.
func LiveStreams(s *Stream) int {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return len(s.table.live)
}
