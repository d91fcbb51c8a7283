package telemetry

import (
	"slices"

	"github.com/kvlane/kvlane/internal/journal"
	"github.com/kvlane/kvlane/internal/statuspage"
)

// AddJournal adds failures and slow operations to the status page.
func (m *Metrics) AddJournal(j *journal.Journal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.journals = append(m.journals, j)
}

// SetConfig sets the configuration on the status page. Secrets are masked there.
func (m *Metrics) SetConfig(settings []statuspage.Setting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.config = settings
}

// AddTable adds a table to the status page. It is read for each request.
func (m *Metrics) AddTable(read func() statuspage.Table) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tables = append(m.tables, read)
}

func (m *Metrics) allJournals() []*journal.Journal {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.journals)
}

func (m *Metrics) configuration() []statuspage.Setting {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.config)
}

func (m *Metrics) allTables() []statuspage.Table {
	m.mu.Lock()
	read := slices.Clone(m.tables)
	m.mu.Unlock()
	var all []statuspage.Table
	for _, f := range read {
		all = append(all, f())
	}
	return all
}
