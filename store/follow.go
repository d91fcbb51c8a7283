package store

// A load by layers that streams of the program follow is copied in strides, so that it can go by what they have come to: while they stand
// still, or are about to, nothing is lost by what copies take from a model, and layers come one by one and as fast as they can. Once
// there are enough ahead of them, layers come in rows, which take longer and leave the model alone.
const (
	// followParts is how many times Config.PartBytes a load is at least: what is shorter is over before a stride has been thought about.
	followParts = 32
	// strideParts is how long a stride is at least, of layers one by one: 32 MiB take 600 us over PCIe 5.
	strideParts = 16
	// strides is how many are on their way, so that one is copied while the next is thought about.
	strides = 2
)

// follows says whether g is copied in strides, which the blocks join that were not looked at.
func (t *LoadTask) follows(g *cohort) bool {
	if t.progress.to == nil || t.s.cfg.RowBytes == 0 {
		return false
	}
	n := int64(0)
	for group, members := range g.members {
		n += int64(len(members)) * t.s.formats[group].Layout.ImageBytes()
	}
	for _, i := range t.sc.todo {
		n += t.s.formats[t.sc.items[i].group].Layout.ImageBytes()
	}
	return n >= followParts*t.s.cfg.PartBytes
}

// stride has the shards of g copied that are next: all of them, or some, if enough are not on their way. Once g has failed, as it does when
// the task is stopped, all that is left is planned and none of it copied.
func (t *LoadTask) stride(g *cohort) {
	for t.layers && g.next < t.s.shards {
		switch {
		case g.err != nil:
			g.planShards(t.s, g.next, t.s.shards)
			g.next = t.s.shards
		case !t.follows(g):
			g.planLayers(t.s, t.s.shards, t.s.cfg.RowBytes, 0)
			t.launch(g, false)
		case len(g.flights)-max(g.flown, g.headed) >= strides:
			return
		default:
			t.follow(g)
		}
	}
}

// follow has a stride of g copied: layers one by one while fewer than make a row are ahead of the streams, or else a row's.
func (t *LoadTask) follow(g *cohort) {
	s, row, bytes := t.s, g.next, int64(0)
	for ; row < s.shards && bytes < s.cfg.RowBytes; row++ {
		bytes += s.shardBytes(row)
	}
	missing := row - g.next - (g.next - t.progress.wanted())
	if missing <= 0 {
		g.planLayers(s, row, s.cfg.RowBytes, s.cfg.RowBytes)
		t.launch(g, false)
		return
	}
	last := g.next
	for bytes = 0; last < min(g.next+missing, s.shards) && bytes < strideParts*s.cfg.PartBytes; last++ {
		bytes += s.shardBytes(last) * int64(len(g.members[s.where[last].group]))
	}
	g.planLayers(s, last, 0, 0)
	t.launch(g, true)
}

// shardBytes is how long a shard of the task's is, of a block that has it.
func (s *Store) shardBytes(shard int) int64 {
	w := s.where[shard]
	return s.formats[w.group].Layout.ShardBytes(w.shard)
}
