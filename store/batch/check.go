package batch

// EnqueueChecks divides the blocks of part n among up to Env.Checkers jobs.
func (g *Group) EnqueueChecks(n int) {
	env, p := g.buf.env, g.Parts[n]
	blocks := p.Blocks.Len()
	jobs := min(blocks, env.Checkers)
	p.pendingJobs.Store(int32(jobs))
	for k := range jobs {
		job := g.newCheckJob()
		job.Group, job.Part, job.buf, job.index = g, p, g.buf, n
		job.from, job.to = k*blocks/jobs, (k+1)*blocks/jobs
		g.jobs = append(g.jobs, job)
		env.Checks.Push(job, 0)
	}
}

// newCheckJob returns a job from the free list, or a new one.
func (g *Group) newCheckJob() *CheckJob {
	n := len(g.freeJobs) - 1
	if n < 0 {
		return new(CheckJob)
	}
	job := g.freeJobs[n]
	g.freeJobs = g.freeJobs[:n]
	return job
}

// Run implements pool.Job.
func (job *CheckJob) Run(int32) {
	job.Group.owner.Check(job)
	buf := job.buf // once pendingJobs is 0, the group and the job may be reused
	job.Part.pendingJobs.Add(-1)
	buf.notify()
}

// Items returns the blocks of the job, as indices of the task's refs.
func (job *CheckJob) Items() []int32 { return job.Group.ItemsOf(job.Part)[job.from:job.to] }

// Position returns the position of Items[k] in its page group.
func (job *CheckJob) Position(k int) int { return job.Part.Blocks.From + job.from + k }

// AddFailure adds a block of the job that failed.
func (job *CheckJob) AddFailure(item int32, err error) {
	job.failures = append(job.failures, Failure{item, job.index, err})
}

// AddFailure adds a block that failed in part n.
func (g *Group) AddFailure(item int32, n int, err error) {
	g.Failures = append(g.Failures, Failure{item, n, err})
}

// NextChecked collects the failures of the next part whose jobs have finished and returns its
// index. Parts are returned in order. If the next part has pending jobs or is not before end, it
// returns -1.
func (g *Group) NextChecked(end int) int {
	n := g.Checked
	if n >= end || g.Parts[n].pendingJobs.Load() != 0 {
		return -1
	}
	g.Checked++
	kept := g.jobs[:0]
	for _, job := range g.jobs {
		if job.index != n {
			kept = append(kept, job)
			continue
		}
		g.Failures = append(g.Failures, job.failures...)
		clear(job.failures)
		clear(job.ByShard)
		*job = CheckJob{failures: job.failures[:0], ByShard: job.ByShard[:0]}
		g.freeJobs = append(g.freeJobs, job)
	}
	clear(g.jobs[len(kept):])
	g.jobs = kept
	return n
}

// SkipChecks marks all completed parts as checked.
func (g *Group) SkipChecks() { g.Checked = g.Completed }

// AddSealParts adds a part, already completed, for each page group that has blocks. These parts
// copy nothing: their check jobs seal blocks whose shards earlier parts have copied. It returns the
// new parts.
func (g *Group) AddSealParts() Span {
	first := len(g.Parts)
	for group, items := range g.Items {
		if len(items) > 0 {
			g.addPart(group, Span{}, Span{0, len(items)})
		}
	}
	g.Checked, g.Completed = first, len(g.Parts)
	return Span{first, g.Completed}
}

// PartByShard returns, for each shard, the part that copied it for the blocks of p: p itself, or an
// earlier part if p copies nothing. It uses the memory of out.
func (g *Group) PartByShard(out []*Part, p *Part) []*Part {
	shards := len(g.buf.env.Map.Layers[p.Group])
	if cap(out) < shards {
		out = make([]*Part, shards)
	}
	out = out[:shards]
	for k := p.Shards.From; k < p.Shards.To; k++ {
		out[k] = p
	}
	if p.Shards.Len() > 0 {
		return out
	}
	for _, q := range g.Parts {
		if q.Group != p.Group {
			continue
		}
		for k := q.Shards.From; k < q.Shards.To; k++ {
			out[k] = q
		}
	}
	return out
}

// FailedBy returns the number of blocks of part n that failed in it or in an earlier part.
func (g *Group) FailedBy(n int) int {
	if len(g.Failures) == 0 {
		return 0
	}
	count := 0
	for _, i := range g.ItemsOf(g.Parts[n]) {
		if f := g.FirstFailure(i); f != nil && f.Part <= n {
			count++
		}
	}
	return count
}

// FirstFailure returns the failure of a block in the earliest part, or nil.
func (g *Group) FirstFailure(item int32) *Failure {
	var first *Failure
	for k := range g.Failures {
		if f := &g.Failures[k]; f.Item == item && (first == nil || f.Part < first.Part) {
			first = f
		}
	}
	return first
}
