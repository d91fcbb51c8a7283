package mooncake

// Die ends a server like a kill: the directory keeps its record.
func Die(s *Server) error { return s.stop() }
