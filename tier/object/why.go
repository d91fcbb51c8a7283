package object

import (
	"context"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
	"github.com/kvlane/kvlane/tier/internal/blockdir"
)

// Why explains the blocks of a folder, whose URL is c.URL, with the keys that keysOf returns for its
// marker. It lists the folder. A bucket records no removals. It returns ErrNotFound if this is not a
// folder of blocks.
func Why(ctx context.Context, c Config, keysOf func(m *blockdir.Marker) ([]block.Key, error)) (a blockdir.Answers, err error) {
	f, err := openFolder(ctx, c)
	if err != nil {
		return a, fmt.Errorf("explain blocks of %s: %w", c.URL, err)
	}
	defer f.close()
	a.Marker = f.marker
	if a.Keys, err = keysOf(&a.Marker); err != nil {
		return a, err
	}
	a.Blocks = make([]tier.Explanation, len(a.Keys))
	at := make(map[block.Key][]int)
	for i, key := range a.Keys {
		a.Blocks[i].Place = c.URL
		at[key] = append(at[key], i)
	}
	err = f.walk(ctx, f.name, func(o *types.Object) error {
		e, ok := f.entry(o)
		for _, i := range at[e.Key] {
			if x := &a.Blocks[i]; ok && e.Bytes == f.formats.ImageBytes(e.Key) {
				x.State, x.Stored = tier.Ready, e.Modified
			} else if ok {
				x.State, x.Reason = tier.Failed, fmt.Sprintf("the object has %d bytes, an image %d", e.Bytes, f.formats.ImageBytes(e.Key))
			}
		}
		return nil
	})
	if err != nil {
		return a, fmt.Errorf("explain blocks of %s: %w", c.URL, err)
	}
	return a, nil
}
