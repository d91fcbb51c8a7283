package blocks

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kvlane/kvlane/bench/sockets"
	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/blockio"
	"github.com/kvlane/kvlane/errdefs"
	"github.com/kvlane/kvlane/wire"
)

// openSockets connects bare sockets that pipeline depth frames with pieces like piece. The client
// computes the checksum of each received piece.
func openSockets(ctx context.Context, piece []byte, depth int) (*sockets.Sockets, error) {
	request, result, err := frames(piece)
	if err != nil {
		return nil, err
	}
	return sockets.Open(ctx, sockets.Options{Request: request, Result: result, Depth: depth, Check: checkPiece(len(piece), xxh3.Hash(piece))})
}

// checkPiece returns a function that compares the checksum of the piece at the end of a result.
func checkPiece(bytes int, sum uint64) func(result []byte) error {
	return func(result []byte) error {
		if xxh3.Hash(result[len(result)-bytes:]) != sum {
			return fmt.Errorf("a piece over bare sockets has other bytes: %w", errdefs.ErrCorrupt)
		}
		return nil
	}
}

// frames returns the frames of a request and of its result including the piece.
func frames(piece []byte) (request, result []byte, err error) {
	l, p := blockio.DefaultLimits(), blockio.Packer{}
	q := blockio.Request{
		Op: blockio.OpRetrieve, ID: 1, RemainingMillis: 1000, Entries: []blockio.Entry{{Key: block.Key{1}, Identity: 1, Length: uint64(len(piece)), EndShard: 1}},
	}
	r := blockio.Result{
		Op: blockio.OpRetrieve, ID: 1, Status: blockio.StatusOK, Credits: 1, Bytes: q.Entries[0].Length,
		Entries: []blockio.EntryResult{{Status: blockio.StatusOK, Bytes: q.Entries[0].Length, Sum: xxh3.Hash(piece)}},
	}
	body, err := p.Request(nil, &q, &l)
	if err == nil {
		request, err = frame(body)
	}
	if err == nil {
		body, err = p.Result(nil, &r, &l)
	}
	if err == nil {
		result, err = frame(body, piece)
	}
	return request, result, err
}

func frame(body []byte, data ...[]byte) ([]byte, error) {
	var b bytes.Buffer
	w := wire.NewFrameWriter(&b)
	err := errors.Join(w.Append(body, data...), w.Flush())
	return b.Bytes(), err
}
