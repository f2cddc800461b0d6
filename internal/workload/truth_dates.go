package workload

import (
	"regexp"
	"strings"
)

var datePattern = regexp.MustCompile(`\b(?:dev)?(20[12]\d)(?:-(0\d|1[012])\b|(0\d|1[012])\d\d\b|\b)`)

// readDate notes the month or the year of the code, and the torch version that
// nightly builds had then.
func (w *Workload) readDate(version string) {
	m := datePattern.FindStringSubmatch(version)
	if m == nil {
		return
	}
	w.Versions["date"] = m[1]
	month := m[2] + m[3]
	if month != "" {
		w.Versions["date"] += "-" + month
	}
	if w.Versions["torch"] == "" {
		w.Versions["torch"] = torchOf(w.Versions["date"], strings.Contains(version, "nightly"))
		if w.Versions["torch"] != "" {
			w.Assume("torch", w.Versions["torch"], "what was current in "+w.Versions["date"])
		}
	}
}

// torchReleases are the months in which torch's release branches were cut, from
// which on nightly builds carry the next version, and in which it was released.
// Source: pytorch RELEASE.md, Release Cadence; its tags.
var torchReleases = [...]struct{ cut, out, version string }{
	{"2021-09", "2021-10", "1.10"}, {"2022-02", "2022-03", "1.11"}, {"2022-05", "2022-06", "1.12"}, {"2022-09", "2022-10", "1.13"},
	{"2023-02", "2023-03", "2.0"}, {"2023-08", "2023-10", "2.1"}, {"2023-12", "2024-01", "2.2"}, {"2024-03", "2024-04", "2.3"},
	{"2024-06", "2024-07", "2.4"}, {"2024-09", "2024-10", "2.5"}, {"2024-12", "2025-01", "2.6"}, {"2025-03", "2025-04", "2.7"},
	{"2025-06", "2025-08", "2.8"}, {"2025-08", "2025-10", "2.9"}, {"2025-12", "2026-01", "2.10"}, {"2026-02", "2026-03", "2.11"},
}

// torchOf returns the version of torch that was current in a month, or at the
// beginning of a year; "" before the list begins.
func torchOf(date string, nightly bool) string {
	if len(date) == 4 {
		date += "-01"
	}
	v := ""
	for i, r := range torchReleases {
		switch {
		case nightly && date > r.cut && i+1 < len(torchReleases):
			v = torchReleases[i+1].version
		case !nightly && date > r.out:
			v = r.version
		}
	}
	return v
}
