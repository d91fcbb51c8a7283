package describe

import "testing"

// TestChunkSpace checks that the computed number of descriptors fits into a span with its
// checksums, and that only a few more could fit.
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
