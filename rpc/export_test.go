package rpc

import "context"

// Decompress is decompress.
var Decompress = decompress

// LiveStreams returns the number of streams of the connection of s.
func LiveStreams(s *Stream) int {
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	return len(s.table.live)
}

// DoPrepared is Client.Do. It calls prepare after the connection was chosen. usable reports whether
// calls may begin on the connection.
func DoPrepared(ctx context.Context, c *Client, r *Request, prepare func(usable func() bool)) (Response, error) {
	return c.do(ctx, r, func(conn *clientConn) error { prepare(conn.usable); return nil })
}
