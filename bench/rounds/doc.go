// Package rounds measures subjects that do the same work in interleaved rounds: each subject runs
// for a duration in each round, and each round begins with another subject. Rates and costs are
// medians of the rounds, so that a busy machine affects all subjects alike.
package rounds
