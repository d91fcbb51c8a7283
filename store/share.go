package store

// wrong is a block of a cohort that one of its parts got wrong.
type wrong struct {
	i, part int
	err     error
}

// sharer is a task whose parts are worked on by the CPU once they have landed.
type sharer interface {
	worker
	// handle works on a share, and notes in it which blocks are wrong.
	handle(sh *share)
}

// share is a job: some of the blocks of a part that has landed are verified, or sealed, by the CPU, while later parts are copied. What
// it found belongs to the task's goroutine once none of the part's shares is pending.
type share struct {
	t        sharer
	sc       *scratch
	g        *cohort
	part     int
	from, to int // blocks of the part
	wrongs   []wrong
	by       []*part // see cohort.byShard
}

// hand hands the n-th part to the checkers, as many shares as there are of them.
func (g *cohort) hand(s *Store, sc *scratch, t sharer, n int) {
	p := &g.parts[n]
	blocks := p.blocks.to - p.blocks.from
	many := min(blocks, s.cfg.Checkers)
	p.pending.Store(int32(many))
	for k := range many {
		sh := g.share()
		sh.t, sh.sc, sh.g, sh.part, sh.from, sh.to = t, sc, g, n, k*blocks/many, (k+1)*blocks/many
		g.shares = append(g.shares, sh)
		s.checks.push(sh, 0)
	}
}

// share returns one that is nobody's.
func (g *cohort) share() *share {
	n := len(g.spare) - 1
	if n < 0 {
		return new(share)
	}
	sh := g.spare[n]
	g.spare = g.spare[:n]
	return sh
}

func (sh *share) work(jobKind, int32) {
	sh.t.handle(sh)
	// After the count has gone down the cohort, and the task, may belong to somebody else.
	sc := sh.sc
	sh.g.parts[sh.part].pending.Add(-1)
	sc.tell()
}

// blocks are those of the share.
func (sh *share) blocks() []int32 { return sh.g.of(&sh.g.parts[sh.part])[sh.from:sh.to] }

func (sh *share) wrong(i int32, err error) {
	sh.wrongs = append(sh.wrongs, wrong{int(i), sh.part, err})
}

// prove takes note of the next part if its shares are done: it returns its number, or -1 where there is none, yet.
func (g *cohort) prove() int {
	n := g.proved
	if n >= g.landed || g.parts[n].pending.Load() != 0 {
		return -1
	}
	g.proved++
	kept := g.shares[:0]
	for _, sh := range g.shares {
		if sh.part != n {
			kept = append(kept, sh)
			continue
		}
		g.wrongs = append(g.wrongs, sh.wrongs...)
		clear(sh.wrongs)
		clear(sh.by)
		*sh = share{wrongs: sh.wrongs[:0], by: sh.by[:0]}
		g.spare = append(g.spare, sh)
	}
	clear(g.shares[len(kept):])
	g.shares = kept
	return n
}

// wrongBy counts the blocks of the n-th part that it, or a part before it, got wrong.
func (g *cohort) wrongBy(n int) int {
	if len(g.wrongs) == 0 {
		return 0
	}
	count := 0
	for _, i := range g.of(&g.parts[n]) {
		if w := g.firstWrong(i); w != nil && w.part <= n {
			count++
		}
	}
	return count
}

// firstWrong returns what is known of the first part that got block i wrong, or nil.
func (g *cohort) firstWrong(i int32) *wrong {
	var first *wrong
	for k := range g.wrongs {
		if w := &g.wrongs[k]; w.i == int(i) && (first == nil || w.part < first.part) {
			first = w
		}
	}
	return first
}
