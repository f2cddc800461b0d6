package oomlog

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Merge joins the results of several logs of one run, such as the per-rank
// files that torchrun and Slurm write. The rank of a file that does not state
// it in its lines is taken from its name. Files have no common clock, so
// failures are ordered by how close to the cause they are: a message about
// memory before one that is only killed, and both before mere consequences;
// within these by attempt, rank and line.
func Merge(results ...*Result) *Result {
	if len(results) == 1 {
		return results[0]
	}
	m := &Result{Attempts: 1}
	for _, r := range results {
		rank := rankOfName(r.Names)
		for _, f := range r.Failures {
			if f.Rank < 0 {
				f.Rank = rank
			}
			m.Failures = append(m.Failures, f)
		}
		m.Names = append(m.Names, r.Names...)
		m.Lines += r.Lines
		m.Bytes += r.Bytes
		m.Binary = m.Binary || r.Binary
		m.Encoding = cmp.Or(m.Encoding, r.Encoding)
		m.Facts = append(m.Facts, r.Facts...)
		m.Progress = append(m.Progress, r.Progress...)
		m.Samples = append(m.Samples, r.Samples...)
		m.Cards = append(m.Cards, r.Cards...)
		m.Holders = append(m.Holders, r.Holders...)
		m.Warnings = append(m.Warnings, r.Warnings...)
		m.Attempts = max(m.Attempts, r.Attempts)
		m.Ranks = max(m.Ranks, r.Ranks, rank+1)
		if r.LastError != nil {
			m.LastError = r.LastError
		}
		if r.Trace != nil && m.Trace == nil {
			m.Trace = r.Trace
		}
	}
	if len(m.Failures) > 0 {
		m.Trace = nil
	}
	slices.SortStableFunc(m.Failures, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(a.Attempt, b.Attempt), cmp.Compare(distance(a.Class), distance(b.Class)), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Source.Line, b.Source.Line))
	})
	return m
}

// distance orders classes by how close to the cause they are.
func distance(c Class) int {
	switch c {
	case ClassHostKilled:
		return 1
	case ClassSecondary, ClassOther:
		return 2
	}
	return 0
}

// rankName finds a rank in a file's name.
const rankName = `(?i)rank[-_.]?(\d+)|worker[-_.]?(\d+)|\.(\d+)\.(?:log|out|err)$|[-_](\d+)\.(?:log|out|err|txt)$`

// rankOfName reads the rank from a file's name: rank_3.log, worker-3.err, or
// torchrun's attempt_0/3/stderr.log.
func rankOfName(names []string) int {
	if len(names) == 0 {
		return -1
	}
	name := strings.ReplaceAll(names[0], "\\", "/")
	base := path.Base(name)
	if m := regexp.MustCompile(rankName).FindStringSubmatch(base); m != nil {
		for _, g := range m[1:] {
			if g != "" {
				return atoi(g)
			}
		}
	}
	if dir := path.Base(path.Dir(name)); (base == "stderr.log" || base == "stdout.log") && digits([]byte(dir)) == len(dir) {
		return atoi(dir)
	}
	return -1
}
