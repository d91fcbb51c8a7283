package describe

import "testing"

// TestChunkSpace: as many descriptors as a span takes fit into it, with their sums, and hardly any
// more would.
func TestChunkSpace(t *testing.T) {
	for _, summed := range []bool{false, true} {
		for bytes := uint64(TableAlign); bytes < 4096; bytes += TableAlign {
			n := mostDescs(int(bytes), summed)
			if ChunkSpace(n, summed) > bytes || ChunkSpace(n+4, summed) <= bytes {
				t.Errorf("summed %t: %d descriptors of %d bytes in a span of %d", summed, n, ChunkSpace(n, summed), bytes)
			}
		}
	}
}
