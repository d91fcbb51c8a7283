package mooncake

// Die ends a server as a kill does: the directory keeps its record.
func Die(s *Server) error { return s.stop() }
