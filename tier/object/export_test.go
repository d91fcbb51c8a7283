package object

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/tier"
)

// errFound ends a walk.
var errFound = errors.New("found")

// Find returns the name of a block's object.
func Find(ctx context.Context, c Config, key block.Key) (name string, err error) {
	b, err := newBucket(ctx, &c)
	if err != nil {
		return "", err
	}
	defer b.close()
	folder := b.prefix + folderName(c.Formats) + "/"
	err = b.walk(ctx, folder, func(o *types.Object) error {
		if k, ok := keyOf(folder, aws.ToString(o.Key)); ok && k == key {
			name = *o.Key
			return errFound
		}
		return nil
	})
	if errors.Is(err, errFound) {
		return name, nil
	}
	return "", errors.Join(err, errors.New("the block has no object"))
}

// Change replaces the object of a block by the result of change.
func Change(ctx context.Context, c Config, key block.Key, change func([]byte) []byte) error {
	name, err := Find(ctx, c, key)
	if err != nil {
		return err
	}
	b, err := newBucket(ctx, &c)
	if err != nil {
		return err
	}
	defer b.close()
	out, err := b.api.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: &name})
	if err != nil {
		return err
	}
	image, err := io.ReadAll(out.Body)
	if err = errors.Join(err, out.Body.Close()); err != nil {
		return err
	}
	_, err = b.api.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.name, Key: &name, Body: bytes.NewReader(change(image))})
	return err
}

// Damage flips a bit in the object of a block.
func Damage(ctx context.Context, c Config, key block.Key) error {
	return Change(ctx, c, key, func(image []byte) []byte {
		f, _ := c.Formats.Of(key)
		image[f.Layout.ShardOff(1)+3] ^= 4
		return image
	})
}

// Names returns the names of the objects of keys.
func Names(c Config, anchors *tier.Anchors, keys []block.Key) (names []string) {
	_, prefix, _ := ParseURL(c.URL)
	t := Tier{c: c, folder: prefix + folderName(c.Formats) + "/"}
	t.anchors.Store(anchors)
	for _, key := range keys {
		names = append(names, t.place(key).name)
	}
	return names
}
