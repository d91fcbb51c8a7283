package mooncake

// Die stops a server as a kill would: the directory keeps its record.
func Die(s *Server) error { return s.stop() }
