package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kvlane/kvlane/block"
	"github.com/kvlane/kvlane/internal/present"
	"github.com/kvlane/kvlane/tier/file"
)

// dirStat is the output of "kvlane store stat" for a directory.
type dirStat struct {
	Directory     string `json:"directory"`
	FormatVersion int    `json:"format_version"`
	*formatStat          // set if there is one page group
	storedStat
	Groups       []groupStat `json:"groups,omitempty"` // set if there are several page groups
	PinnedBlocks int64       `json:"pinned_blocks"`
	PinnedBytes  int64       `json:"pinned_bytes"`
	Temporary    int         `json:"temporary_files"`
	Quarantined  int         `json:"quarantined_files"`
	// Segments and SegmentBytes are set for a log.
	Segments     int   `json:"segments,omitempty"`
	SegmentBytes int64 `json:"segment_bytes,omitempty"`
	// Next lists the next steps.
	Next []string `json:"next,omitempty"`
}

// formatStat is the format of a page group's blocks.
type formatStat struct {
	Digest     string          `json:"identity_digest"`
	Identity   *block.Identity `json:"identity,omitempty"`
	Shards     int             `json:"shards"`
	ImageBytes int64           `json:"image_bytes"`
}

type storedStat struct {
	Blocks int64 `json:"blocks"`
	Bytes  int64 `json:"bytes"`
}

type groupStat struct {
	formatStat
	storedStat
}

func newStoreStatCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stat DIR",
		Short: "Report the identities and the number of blocks of a directory",
		Example: `  kvlane store stat /var/cache/kvlane
  kvlane store stat /var/cache/kvlane --json`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			bucket := accessOf(cmd)
			dirs, err := foldersOf(cmd.Context(), bucket, args[0])
			if err != nil {
				return err
			}
			return printFolders(cmd.Context(), cmd.OutOrStdout(), dirs, asJSON, func(dir string) (folderResult, error) {
				in, err := keeperOf(bucket, dir).inspect(cmd.Context(), dir)
				if err != nil {
					return folderResult{}, err
				}
				s := statOf(dir, &in)
				return folderResult{s, s.rows()}, nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, jsonOfFolders)
	return cmd
}

func statOf(dir string, in *file.Inspection) dirStat {
	s := dirStat{
		Directory: dir, FormatVersion: in.Marker.Version, storedStat: storedStat(in.Totals),
		PinnedBlocks: in.Pinned.Blocks, PinnedBytes: in.Pinned.Bytes, Temporary: in.Temporary, Quarantined: in.Quarantined,
		Segments: in.Segments, SegmentBytes: in.SegmentBytes, Next: inQuarantine(dir, in.Quarantined),
	}
	for i, g := range in.Marker.Groups {
		f := formatStat{Digest: g.Digest.String(), Identity: g.Identity, Shards: g.Layout.Shards(), ImageBytes: g.Layout.ImageBytes()}
		if len(in.Marker.Groups) == 1 {
			s.formatStat = &f
			break
		}
		s.Groups = append(s.Groups, groupStat{f, storedStat(in.ByGroup[i])})
	}
	return s
}

func (s *dirStat) rows() [][2]string {
	rows := [][2]string{{directoryRow, s.Directory}, {"format version", fmt.Sprint(s.FormatVersion)}}
	if s.formatStat != nil {
		rows = append(rows, s.formatStat.rows()...)
	}
	for i := range s.Groups {
		rows = append(append(rows, [2]string{"page group", fmt.Sprint(i)}), s.Groups[i].formatStat.rows()...)
		rows = append(rows, s.Groups[i].storedStat.rows()...)
	}
	if len(s.Groups) > 0 {
		rows = append(rows, [2]string{"all page groups", fmt.Sprint(len(s.Groups))})
	}
	rows = append(rows, s.storedStat.rows()...)
	if s.PinnedBlocks > 0 {
		rows = append(rows, [2]string{"pinned", fmt.Sprintf("%d, %s", s.PinnedBlocks, present.Bytes(s.PinnedBytes))})
	}
	if s.Segments > 0 {
		rows = append(rows, [2]string{"segments", fmt.Sprintf("%d, %s", s.Segments, present.Bytes(s.SegmentBytes))})
	}
	rows = append(rows, [2]string{"temporary files", fmt.Sprint(s.Temporary)}, [2]string{"quarantined files", fmt.Sprint(s.Quarantined)})
	return append(rows, nextRows(s.Next)...)
}

func (s *storedStat) rows() [][2]string {
	return [][2]string{{"blocks", fmt.Sprint(s.Blocks)}, {"bytes", present.Bytes(s.Bytes)}}
}

func (s *formatStat) rows() [][2]string {
	rows := [][2]string{{"identity", s.Digest}}
	if id := s.Identity; id != nil {
		if id.Group != "" {
			rows = append(rows, [2]string{"  page group", id.Group}, [2]string{"  its layers", id.Layers})
		}
		rows = append(rows,
			[2]string{"  model", id.Model}, [2]string{"  dtype", id.DType}, [2]string{"  kind of KV", id.Layout},
			[2]string{"  layers", fmt.Sprintf("%d to %d", id.LayerFirst, id.LayerEnd-1)},
			[2]string{"  heads", fmt.Sprintf("%d to %d, of %d elements", id.HeadFirst, id.HeadEnd-1, id.HeadSize)},
			[2]string{"  tokens a block", fmt.Sprint(id.BlockTokens)})
		for _, o := range [][2]string{{"  revision", id.Revision}, {"  adapter", id.Adapter}, {"  salt", id.Salt}} {
			if o[1] != "" {
				rows = append(rows, o)
			}
		}
	}
	return append(rows, [2]string{"block", fmt.Sprintf("%s in %d shards", present.Bytes(s.ImageBytes), s.Shards)})
}
