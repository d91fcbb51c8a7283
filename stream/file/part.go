package file

// part is a piece of a batch that is moved at once.
type part struct{}

func (p *part) moved(*transfer, int64, error) {}
